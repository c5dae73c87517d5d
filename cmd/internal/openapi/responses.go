package main

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"takt/http/api"
)

func (d *document) responses(r api.Route, in input, content bool) *yaml.Node {
	all := map[int]*yaml.Node{}
	for _, reply := range replies(r) {
		all[reply.Status] = d.reply(reply, content)
	}
	follows, names := follow(r, in), problems()
	for _, status := range r.Errors {
		if slices.Contains(follows, status) {
			fail("the error %d follows from the other fields", status)
		}
	}
	for _, status := range append(follows, r.Errors...) {
		if names[status] == "" && all[status] == nil {
			fail("no reply for the error %d", status)
		} else if all[status] == nil {
			all[status] = ref("responses", names[status])
		}
	}
	o := object()
	for _, status := range slices.Sorted(maps.Keys(all)) {
		key := node("x")
		key.Value, key.Style = strconv.Itoa(status), yaml.SingleQuotedStyle
		o.Content = append(o.Content, key, all[status])
	}
	return o
}

// reply is a reply with its JSON: several types, or none. events are the types of the data of a
// stream's events.
type reply struct {
	api.Reply
	types, events []any
}

// replies lists the replies of r that are no usual errors.
func replies(r api.Route) []reply {
	success := reply{Reply: api.Reply{Status: r.Status, Says: r.Says, Headers: r.Headers, Media: r.Media}}
	stream := slices.Contains(r.Media, "text/event-stream")
	if none := r.Out() == reflect.TypeFor[api.None](); !none && (stream || len(r.Sends) == 0) {
		success.types = []any{zero(r.Out())}
	}
	if stream {
		success.events = r.Sends
	} else {
		success.types = append(success.types, r.Sends...)
	}
	all := []reply{success}
	if isFile(r) {
		about := []string{"ETag", "Repr-Digest", "Content-Disposition", "Accept-Ranges"}
		if r.Says == "" {
			all[0].Says = "The file."
		}
		all[0].Headers = about
		all = append(all,
			reply{Reply: api.Reply{
				Status: 206, Says: "The range that was asked for.",
				Headers: append(about, "Content-Range"), Media: append(slices.Clone(r.Media), "multipart/byteranges"),
			}},
			reply{Reply: api.Reply{Status: 304, Says: "`If-None-Match` names this file.", Headers: []string{"ETag"}}})
	}
	for _, further := range r.Replies {
		one := reply{Reply: further}
		if further.Sends != nil {
			one.types = []any{further.Sends}
		}
		all = append(all, one)
	}
	return all
}

// reply describes one reply.
func (d *document) reply(r reply, content bool) *yaml.Node {
	headers := object()
	for _, name := range append([]string{"X-Request-Id"}, r.Headers...) {
		set(headers, name, ref("headers", strings.ReplaceAll(name, "-", "")))
	}
	says := r.Says
	if says == "" {
		says = "Done."
	}
	o := object("description", says, "headers", headers)
	media := object()
	kind := "application/json"
	if r.Status >= 400 {
		kind = "application/problem+json"
	}
	if len(r.types) > 0 {
		set(media, kind, object("schema", d.choice("oneOf", r.types)))
	}
	for _, kind := range r.Media {
		schema := object("type", "string")
		if kind == "text/event-stream" {
			event := object("type", "object", "properties", object("event", object("type", "string"),
				"data", object("type", "string", "contentMediaType", "application/json", "contentSchema", d.choice("anyOf", r.events))))
			set(schema, "contentMediaType", kind)
			set(schema, "contentSchema", object("type", "array", "items", event))
		}
		if !strings.Contains(kind, "text") && kind != "application/yaml" {
			set(schema, "format", "binary")
		}
		set(media, kind, object("schema", schema))
	}
	if content && len(media.Content) > 0 {
		set(o, "content", media)
	}
	return o
}

// choice returns the schema of a value of one of the types, by oneOf or anyOf.
func (d *document) choice(by string, types []any) *yaml.Node {
	of := list[*yaml.Node]()
	for _, v := range types {
		of.Content = append(of.Content, d.ofValue(v))
	}
	if len(of.Content) == 1 {
		return of.Content[0]
	}
	return object(by, of)
}

// canBeWrong reports whether a parameter does not take everything.
func canBeWrong(f reflect.StructField) bool {
	for _, tag := range [...]string{"type", "schema", "enum", "min", "required"} {
		if f.Tag.Get(tag) != "" {
			return true
		}
	}
	return f.Type.Kind() == reflect.Bool || reflect.PointerTo(f.Type).Implements(reflect.TypeFor[api.Param]())
}

// follow lists the errors that follow from what the endpoint is.
func follow(r api.Route, in input) []int {
	found := map[int]bool{429: true, 500: true, 503: true}
	is := func(statuses ...int) {
		for _, s := range statuses {
			found[s] = true
		}
	}
	if r.Access != api.Public {
		is(401, 403)
	}
	if in.body != nil {
		is(400, 413)
	}
	if in.json {
		is(415)
	}
	if isFile(r) {
		is(400, 412, 416)
	}
	for _, f := range in.params {
		where, name, _ := place(f)
		switch {
		case where == "path" && f.Tag.Get("enum") == "" && f.Type != reflect.TypeFor[api.HubSpotID]():
			is(404)
		case scheme(name) != "" || where == "header" && (name == api.HeaderWorkerID || name == api.HeaderBuildID):
		case name == api.HeaderBuildAttempt || name == api.HeaderInstance: // another process may hold it
			is(400, 409)
		case canBeWrong(f):
			is(400)
		}
	}
	return slices.Sorted(maps.Keys(found))
}
