package api

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"takt/store"
)

// Values of input.body that are no field.
const (
	noBody    = -1
	wholeBody = -2
)

// Param is a parameter's type with its own form.
type Param interface {
	// ReadParam sets the value from what was sent under name; it is called even if nothing
	// was sent. The error is the one that the client gets.
	ReadParam(name, sent string) error
}

// Identifier is an id in a path. Clients check it before they send it.
type Identifier interface {
	Param
	// Kind is what it identifies, such as "build".
	Kind() string
}

// Paging selects a page of a long list.
type Paging struct {
	// Limit is the most to return, 10,000 without one.
	Limit int `query:"limit" min:"1"`
	Continue
}

// Continue begins a list where the previous page ended.
type Continue struct {
	// Cursor is that of the previous page's Link header.
	Cursor string `query:"cursor"`
}

// paged are the headers of a list.
var paged = []string{"Link", HeaderIgnored}

// param is one parameter of an endpoint: a field of its input.
type param struct {
	field    []int
	in       string // path, query or header
	name     string
	own      bool // the field's type is a Param
	list     bool // the field has all values
	min, max *int64
	def      string
	enum     []string
	id       bool   // it must be a valid id
	platform bool   // it must be the name of a platform
	invalid  string // the error's text; "" for the usual one
}

// input is how the type of an endpoint's input is read and written.
type input struct {
	params []param
	first  int  // how many of params are read before the body
	body   int  // the index of the body's field, wholeBody or noBody
	loose  bool // a request without a body may have any Content-Type
	omit   bool // clients send no body that is zero
}

// inputOf reads the tags of an input's type.
func inputOf(t reflect.Type) (in input, err error) {
	in.body = wholeBody
	if t == reflect.TypeFor[None]() {
		in.body = noBody
	}
	if t.Kind() != reflect.Struct {
		return in, nil
	}
	for _, f := range reflect.VisibleFields(t) {
		if how, ok := f.Tag.Lookup("body"); ok {
			in.body, in.loose, in.omit = f.Index[0], how == "loose", how != "json"
			in.first = len(in.params)
			continue
		}
		for _, from := range [...]string{"path", "query", "header"} {
			name, ok := f.Tag.Lookup(from)
			if !ok {
				continue
			}
			if in.body == wholeBody {
				in.body = noBody
			}
			p, err := paramOf(f, from, name)
			if err != nil {
				return in, err
			}
			in.params = append(in.params, p)
		}
	}
	if in.body < 0 {
		in.first = len(in.params)
	}
	return in, nil
}

func paramOf(f reflect.StructField, in, name string) (p param, err error) {
	p = param{in: in, name: name, field: f.Index, def: f.Tag.Get("default"), invalid: f.Tag.Get("invalid"), id: f.Tag.Get("schema") == "ID"}
	p.platform = f.Tag.Get("schema") == "Platform"
	p.own = reflect.PointerTo(f.Type).Implements(reflect.TypeFor[Param]())
	if v := f.Tag.Get("enum"); v != "" {
		p.enum = strings.Split(v, ",")
	}
	for tag, at := range map[string]**int64{"min": &p.min, "max": &p.max} {
		if v, ok := f.Tag.Lookup(tag); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return p, fmt.Errorf("%s of %s: %w", tag, name, err)
			}
			*at = &n
		}
	}
	if !p.own {
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		case reflect.Slice: // a parameter of the query that may be sent several times
			if p.list = in == "query" && t.Elem().Kind() == reflect.String; !p.list {
				return p, fmt.Errorf("%s is a list, which only texts in the query can be", name)
			}
		default:
			return p, fmt.Errorf("%s has the type %s, which no parameter has", name, f.Type)
		}
	}
	return p, nil
}

// readAll sets the fields of in that belong to params.
func readAll(params []param, r Request, in reflect.Value) error {
	for i := range params {
		if err := params[i].read(r, in); err != nil {
			return err
		}
	}
	return nil
}

// read sets the parameter's field of in from r.
func (p *param) read(r Request, in reflect.Value) error {
	if p.list {
		all := in.FieldByIndex(p.field)
		for _, sent := range r.QueryAll(p.name) {
			all.Set(reflect.Append(all, reflect.ValueOf(sent)))
		}
		return check(all.Interface())
	}
	var sent string
	switch p.in {
	case "path":
		sent = r.Path(p.name)
	case "query":
		sent = r.Query(p.name)
	default:
		sent = r.Header(p.name)
	}
	field := in.FieldByIndex(p.field)
	if p.own {
		return field.Addr().Interface().(Param).ReadParam(p.name, sent) // checked by paramOf
	}
	if sent == "" {
		if sent = p.def; sent == "" {
			return nil
		}
	}
	if field.Kind() == reflect.Pointer { // nil unless it was sent
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	switch field.Kind() {
	case reflect.String:
		if len(p.enum) > 0 && !slices.Contains(p.enum, sent) {
			return p.refuse("must be " + orList(p.enum))
		}
		if p.platform && !store.Platform(sent).Valid() {
			return p.refuse("must be a platform")
		}
		if p.id && !store.ValidID(sent) {
			return p.refuse("must be an id")
		}
		field.SetString(sent)
	case reflect.Bool:
		on, err := strconv.ParseBool(sent)
		if err != nil {
			return p.refuse("must be 1 or 0")
		}
		field.SetBool(on)
	default:
		n, err := strconv.ParseInt(sent, 10, field.Type().Bits())
		if err != nil || p.min != nil && n < *p.min || p.max != nil && n > *p.max {
			return p.refuse(p.bounds())
		}
		field.SetInt(n)
	}
	return nil
}

// write adds the parameter's field of in to a client's request.
func (p *param) write(c *Call, in reflect.Value) error {
	field := in.FieldByIndex(p.field)
	if p.in != "path" && field.IsZero() {
		return nil
	}
	if field.Kind() == reflect.Pointer {
		field = field.Elem()
	}
	if p.list {
		for i := range field.Len() {
			c.Query[p.name] = append(c.Query[p.name], field.Index(i).String())
		}
		return nil
	}
	v := fmt.Sprint(field.Interface())
	if field.Kind() == reflect.Bool {
		v = "1"
	}
	switch p.in {
	case "query":
		c.Query[p.name] = []string{v}
	case "header":
		c.Header[p.name] = []string{v}
	default:
		if id, ok := reflect.TypeAssert[Identifier](field.Addr()); ok && !store.ValidID(v) {
			return store.NewError(store.InvalidArgument, fmt.Sprintf("%q is not a valid %s id", v, id.Kind()))
		}
		if p.name == "*" { // several segments
			c.Path = strings.Replace(c.Path, "*", (&url.URL{Path: v}).EscapedPath(), 1)
		} else {
			c.Path = strings.Replace(c.Path, ":"+p.name, url.PathEscape(v), 1)
		}
	}
	return nil
}

func (p *param) refuse(why string) error {
	if p.invalid != "" {
		return invalid(p.invalid)
	}
	return invalid(p.name + " " + why)
}

// bounds says which numbers are allowed.
func (p *param) bounds() string {
	switch {
	case p.max != nil && p.min != nil:
		return fmt.Sprintf("must be %d to %d", *p.min, *p.max)
	case p.min != nil && *p.min == 1:
		return "must be a positive whole number"
	default:
		return "must be a whole number"
	}
}

func orList(values []string) string {
	if n := len(values); n > 1 {
		return strings.Join(values[:n-1], ", ") + " or " + values[n-1]
	}
	return strings.Join(values, "")
}

func invalid(message string) error { return store.NewError(store.InvalidArgument, message) }
