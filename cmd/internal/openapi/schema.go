package main

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"takt/http/api"
	"takt/store"
)

// schemas makes the schemas of Go types. Tags of a field say more than its type:
//
//	schema:"ID"       the named schema instead of the type's; of a slice, of its items
//	enum:"a,b"        the values (values:"a,b" the same, in a parameter that takes others)
//	const:"ok"        the only value
//	pattern, format   as in JSON Schema
//	type:"object"     of what the Go type leaves open; type:"ID" is schema:"ID", but of a
//	                  parameter that takes others
//	min, max          of a number, a text's length or a list's
//	over, under       exclusive bounds of a number
//	default:"1"       the value of an absent one
//	null:"never"      a pointer that is never null
//	required:"true"   in spite of omitempty; "false" without it
type schemas struct {
	comments comments
	all      *yaml.Node // components/schemas
	named    map[string]reflect.Type
	made     map[string]*yaml.Node
}

// otherNames are schemas that are not called as their types.
func otherName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[api.BuildItem]():
		return "Build"
	case reflect.TypeFor[store.HeijunkaStatus]():
		return "Heijunka"
	case reflect.TypeFor[store.HeijunkaBursts]():
		return "HeijunkaBurst"
	case reflect.TypeFor[store.BuildUpdate]():
		return "BuildUpdated"
	case reflect.TypeFor[store.WorkerUpdate]():
		return "WorkerUpdated"
	case reflect.TypeFor[store.BuildState]():
		return "State"
	case reflect.TypeFor[time.Time]():
		return "Time"
	}
	return t.Name()
}

// ofValue returns the schema of the type of v, or the one that it names.
func (s *schemas) ofValue(v any) *yaml.Node {
	if name, ok := v.(api.Named); ok {
		return ref("schemas", string(name))
	}
	return s.of(reflect.TypeOf(v))
}

// of returns the schema of t: a reference if it has a name.
func (s *schemas) of(t reflect.Type) *yaml.Node {
	name := otherName(t)
	if name != "" && t.PkgPath() != "" && at(s.all, name) != nil && s.named[name] == nil {
		return ref("schemas", name) // written by hand
	}
	switch {
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return object()
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object("type", "string", "contentEncoding", "base64")
	case t.Kind() == reflect.Struct && name != "":
		s.define(name, t)
		return ref("schemas", name)
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.members(t, "json")
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return object("type", "string")
	case reflect.Bool:
		return object("type", "boolean")
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return object("type", "integer")
	case reflect.Float64:
		return object("type", "number")
	case reflect.Slice:
		return object("type", "array", "items", s.of(t.Elem()))
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object("type", "object", "additionalProperties", true)
		}
		value := s.of(t.Elem())
		if t.Elem().Kind() == reflect.Pointer {
			value = orNull(value)
		}
		return object("type", "object", "additionalProperties", value)
	default:
		fail("no schema for the type %s", t)
		return nil
	}
}

// define adds the schema of a struct.
func (s *schemas) define(name string, t reflect.Type) {
	if had := s.named[name]; had == t {
		return
	} else if had != nil {
		fail("%s and %s are both called %s", had, t, name)
	}
	s.named[name] = t
	tag := "json"
	if isForm(t) {
		tag = "form"
	}
	o := s.members(t, tag)
	if text := s.comments.of(t, "", name); text != "" {
		o.Content = slices.Insert(o.Content, 2, object("description", text).Content...)
	}
	s.made[name] = o
}

func isForm(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	return slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Tag.Get("form") != "" })
}

// members is the schema of an object with the fields of t that have the tag.
func (s *schemas) members(t reflect.Type, tag string) *yaml.Node {
	required, properties := list[string](), object()
	for _, f := range reflect.VisibleFields(t) {
		value, ok := f.Tag.Lookup(tag)
		if !ok || value == "-" || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(value, ",")
		absent := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		schema := s.field(f)
		if f.Type.Kind() == reflect.Pointer && !absent && f.Tag.Get("null") != "never" {
			schema = orNull(schema)
		}
		if v, ok := f.Tag.Lookup("required"); ok {
			absent = v != "true"
		}
		if !absent {
			required.Content = append(required.Content, node(name))
		}
		set(schema, "description", s.comments.of(owner(t, f), f.Name, ""))
		set(properties, name, schema)
	}
	o := object("type", "object")
	if len(required.Content) > 0 {
		set(o, "required", required)
	}
	set(o, "properties", properties)
	return o
}

// owner is the struct that declares a field of t.
func owner(t reflect.Type, f reflect.StructField) reflect.Type {
	for _, i := range f.Index[:len(f.Index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t
}

func orNull(schema *yaml.Node) *yaml.Node {
	kind := at(schema, "type")
	switch {
	case kind == nil && len(schema.Content) == 0: // anything
	case kind == nil:
		return object("oneOf", list(schema, object("type", "null")))
	default:
		*kind = *list(kind.Value, "null")
	}
	return schema
}

// field is the schema of a field: that of its type with what its tags say.
func (s *schemas) field(f reflect.StructField) *yaml.Node {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	isList := f.Tag.Get("type") == "array" || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
	if isList && t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if !isList {
		return s.value(t, f.Tag)
	}
	var one *yaml.Node
	if name := f.Tag.Get("schema"); name != "" {
		one = ref("schemas", name)
	} else if kind := f.Tag.Get("type"); kind != "" && kind != "array" {
		one = object("type", kind)
	} else {
		one = s.of(t)
	}
	all := object("type", "array", "items", one)
	bounds(all, f.Tag, "Items")
	return all
}

// value is the schema of a value of type t.
func (s *schemas) value(t reflect.Type, tag reflect.StructTag) *yaml.Node {
	if name := tag.Get("schema"); name != "" {
		return ref("schemas", name)
	}
	schema := s.of(t)
	kind := tag.Get("type")
	switch n := at(schema, "type"); {
	case kind == "" && n != nil:
		kind = n.Value
	case strings.ToLower(kind) != kind:
		return ref("schemas", kind)
	case strings.Contains(kind, ","):
		schema = object("type", list(strings.Split(kind, ",")...))
	case kind != "":
		schema = object("type", kind)
	}
	for _, name := range [...]string{"enum", "values"} {
		if v, ok := tag.Lookup(name); ok {
			set(schema, "enum", list(strings.Split(v, ",")...))
		}
	}
	if v, ok := tag.Lookup("const"); ok {
		set(schema, "const", typed(kind, v))
	}
	set(schema, "pattern", tag.Get("pattern"))
	set(schema, "format", tag.Get("format"))
	switch kind {
	case "integer", "number":
		for _, b := range [...][2]string{{"min", "minimum"}, {"max", "maximum"}, {"over", "exclusiveMinimum"}, {"under", "exclusiveMaximum"}} {
			if v, ok := tag.Lookup(b[0]); ok {
				set(schema, b[1], typed(kind, v))
			}
		}
	case "string":
		bounds(schema, tag, "Length")
	}
	if v, ok := tag.Lookup("default"); ok {
		set(schema, "default", typed(kind, v))
	}
	return schema
}

// bounds adds how long a text or a list may be.
func bounds(schema *yaml.Node, tag reflect.StructTag, of string) {
	for _, b := range [...]string{"min", "max"} {
		if v, ok := tag.Lookup(b); ok {
			set(schema, b+of, typed("integer", v))
		}
	}
}

// typed is the value that a tag says.
func typed(kind, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	if kind == "string" {
		n.SetString(value)
	}
	return n
}
