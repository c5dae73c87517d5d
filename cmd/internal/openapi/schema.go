package main

import (
	"encoding/json"
	"fmt"
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
func (s *schemas) ofValue(v any) (*yaml.Node, error) {
	if name, ok := v.(api.Named); ok {
		return ref("schemas", string(name)), nil
	}
	return s.of(reflect.TypeOf(v))
}

// of returns the schema of t: a reference if it has a name.
func (s *schemas) of(t reflect.Type) (*yaml.Node, error) {
	name := otherName(t)
	if name != "" && t.PkgPath() != "" && at(s.all, name) != nil && s.named[name] == nil {
		return ref("schemas", name), nil // written by hand
	}
	switch {
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return object(), nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object("type", "string", "contentEncoding", "base64"), nil
	case t.Kind() == reflect.Struct && name != "":
		return ref("schemas", name), s.define(name, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.members(t, "json")
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return object("type", "string"), nil
	case reflect.Bool:
		return object("type", "boolean"), nil
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return object("type", "integer"), nil
	case reflect.Float64:
		return object("type", "number"), nil
	case reflect.Slice:
		items, err := s.of(t.Elem())
		return object("type", "array", "items", items), err
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object("type", "object", "additionalProperties", true), nil
		}
		values, err := s.of(t.Elem())
		return object("type", "object", "additionalProperties", values), err
	default:
		return nil, fmt.Errorf("no schema for the type %s", t)
	}
}

// define adds the schema of a struct.
func (s *schemas) define(name string, t reflect.Type) error {
	if had := s.named[name]; had != nil {
		if had != t {
			return fmt.Errorf("%s and %s are both called %s", had, t, name)
		}
		return nil
	}
	s.named[name] = t
	tag := "json"
	if isForm(t) {
		tag = "form"
	}
	o, err := s.members(t, tag)
	if err != nil {
		return fmt.Errorf("%s: %w", t, err)
	}
	if text := s.comments.of(t, "", name); text != "" {
		o.Content = slices.Insert(o.Content, 2, object("description", text).Content...)
	}
	s.made[name] = o
	return nil
}

func isForm(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	return slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Tag.Get("form") != "" })
}

// members is the schema of an object with the fields of t that have the tag.
func (s *schemas) members(t reflect.Type, tag string) (*yaml.Node, error) {
	required, properties := list[string](), object()
	for _, f := range reflect.VisibleFields(t) {
		value, ok := f.Tag.Lookup(tag)
		if !ok || value == "-" || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(value, ",")
		absent := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		schema, err := s.field(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
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
	return o, nil
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
func (s *schemas) field(f reflect.StructField) (*yaml.Node, error) {
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
	var err error
	if name := f.Tag.Get("schema"); name != "" {
		one = ref("schemas", name)
	} else if kind := f.Tag.Get("type"); kind != "" && kind != "array" {
		one = object("type", kind)
	} else if one, err = s.of(t); err != nil {
		return nil, err
	}
	all := object("type", "array", "items", one)
	bounds(all, f.Tag, "Items")
	return all, nil
}

// value is the schema of a value of type t.
func (s *schemas) value(t reflect.Type, tag reflect.StructTag) (*yaml.Node, error) {
	if name := tag.Get("schema"); name != "" {
		return ref("schemas", name), nil
	}
	schema, err := s.of(t)
	if err != nil {
		return nil, err
	}
	kind := tag.Get("type")
	switch n := at(schema, "type"); {
	case kind == "" && n != nil:
		kind = n.Value
	case strings.ToLower(kind) != kind:
		return ref("schemas", kind), nil
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
	return schema, nil
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
