package api

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"takt/store"
)

//go:generate go run ../../cmd/internal/openapi ../..

// Access is who may use a route, as far as its headers show. Handlers check what needs the
// database: build tokens, and who holds a build.
type Access uint8

// The kinds of access.
const (
	Public     Access = iota
	APIKey            // X-API-Key
	BuildKey          // X-API-Key, or X-Build-Token of that build
	WorkerKey         // X-API-Key and X-Worker-Id
	HolderKey         // as WorkerKey, and X-Build-Id
	MonitorKey        // as HolderKey; without X-API-Key if the controller's settings allow it
	AdminKey          // X-Admin-Key
	Visitor           // anybody with a browser
	Reader            // a dashboard session
	Operator          // a dashboard session that began with the admin key
)

// Class is a class of requests that compete for the same places (load levelling).
type Class uint8

// The classes.
const (
	Fleet    Class = iota // workers' short calls: priority
	Write                 // other small writes
	Transfer              // every file, in or out
	Query                 // reads
	Hook                  // webhooks
	Ops                   // operators and probes: these are not levelled
)

func (c Class) String() string {
	return [...]string{"fleet", "submit", "transfer", "query", "hook", "ops"}[c]
}

// BodyLimit names the limit on a request's body. The controller's settings give the bytes.
type BodyLimit uint8

// The limits.
const (
	JSONBody    BodyLimit = iota
	SourceBody            // a source archive with certificates
	ResultBody            // a build's result
	WebhookBody           // a HubSpot action
)

// The services, as settings name them. Each can be left out of a controller.
const (
	ServiceBuilds      = "builds"
	ServiceThrottle    = "throttle"
	ServiceDeployments = "deployments"
)

// Route describes an endpoint without its types.
type Route struct {
	// ID is the operation id in the OpenAPI document. Further methods, such as HEAD, get it
	// with a prefix.
	ID string
	// Method may be several, separated by spaces; clients use the first.
	Method string
	// Path has parameters such as ":id".
	Path string
	// Service is the service that the route belongs to; "" for all.
	Service string
	Tag     string
	Summary string
	// Text describes more in Markdown.
	Text   string
	Access Access
	// Scope is what a key with a name needs; "" if the route needs no key. With Own, a key that
	// submits has its own builds without that scope.
	Scope store.Scope
	Own   bool
	Class Class
	// Strict refuses parameters of the query that the endpoint does not know.
	Strict bool
	// AdminToo says that operators send their key beside the API key.
	AdminToo bool
	Body     BodyLimit
	// Status is that of a success; 0 means 200.
	Status int
	// Says describes a success in a sentence; "" means "Done.".
	Says string
	// Headers are the headers of a success beside X-Request-Id.
	Headers []string
	// Media are the content types of a success beside Out as JSON. With the class Transfer
	// they are those of a file, which has ranges and conditions.
	Media []string
	// Takes is a value of the body's type if the endpoint reads the body itself. A type with
	// fields tagged `form:"name"` is a multipart form.
	Takes any
	// Sends are values of the types that a success may have if Out doesn't say it, or of the
	// data of a stream's events.
	Sends []any
	// Replies are further replies that are no usual errors.
	Replies []Reply
	// Errors are the statuses of errors beside those that follow from the other fields.
	Errors []int

	in, out reflect.Type
}

// Named is the name of a schema that no type of this package has, in place of a value.
type Named string

// Content types that several endpoints send.
const (
	eventStream = "text/event-stream"
	anyFile     = "application/octet-stream"
	zipFile     = "application/zip"
)

// Reply describes one status of an endpoint's reply.
type Reply struct {
	Status  int
	Says    string
	Headers []string
	Media   []string // content types beside JSON
	Sends   any      // a value of its JSON's type; nil if it has none
}

// In returns the type of the endpoint's input.
func (r Route) In() reflect.Type { return r.in }

// Out returns the type of the endpoint's output; [None] if it has none.
func (r Route) Out() reflect.Type { return r.out }

// Endpoint is a route with its input and output: all that a server, a client and the
// documentation need to know of it. In is a struct whose fields are tagged `path:"name"`,
// `query:"name"` or `header:"Name"`; the field tagged `body:"json"` is the JSON body. An In
// without such tags is the body itself. Endpoints are made by [declare] and never changed.
type Endpoint[In, Out any] struct {
	Route
	decoder Decoder[In]
}

// None is the input of an endpoint without parameters, and the output of one without a
// reply body.
type None struct{}

// routes are all declared endpoints, in the order of their declaration.
var routes []Route //nolint:gochecknoglobals // filled while the program is initialised

// Routes lists all endpoints, ordered by path and method.
func Routes() []Route {
	sorted := slices.Clone(routes)
	slices.SortFunc(sorted, func(a, b Route) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method))
	})
	return sorted
}

// area is a part of the API: its service, "" for all, and its tag.
type area string

// The areas.
const (
	builds         area = ServiceBuilds + " builds"
	workers        area = ServiceBuilds + " workers"
	holding        area = ServiceBuilds + " holding"
	diagnostics    area = ServiceBuilds + " diagnostics"
	buildOrders    area = ServiceBuilds + " operators"
	throttle       area = ServiceThrottle + " throttle"
	throttleOrders area = ServiceThrottle + " operators"
	deployments    area = ServiceDeployments + " deployments"
	operators      area = " operators"
	events         area = " events"
	health         area = " health"
)

// scope is the scope that a route needs, and whether own builds need it.
type scope string

// The scopes. Each declaration says one.
const (
	scopeNone         scope = "" // for everybody
	scopeSubmit             = scope(store.ScopeSubmit)
	scopeRead               = scope(store.ScopeRead)
	scopeReadOrOwn          = scopeRead + " own"
	scopeWorker             = scope(store.ScopeWorker)
	scopeWebhook            = scope(store.ScopeWebhook)
	scopeOperate            = scope(store.ScopeOperate)
	scopeOperateOrOwn       = scopeOperate + " own"
	scopeAdmin              = scope(store.ScopeAdmin)
	scopeEnroll             = scope(store.ScopeEnroll)
)

// declare returns the endpoint at a method and path, with what else r says, and adds it to
// [Routes]. It panics on a mistake in the declaration: an In that can't be read from a request,
// or a route that needs a key but no scope.
func declare[In, Out any](of area, access Access, needs scope, class Class, at string, r Route) Endpoint[In, Out] {
	if (needs == scopeNone) != (access == Public) {
		panic("a route that is not public needs a scope, and only that: " + at)
	}
	i := strings.LastIndexByte(at, ' ')
	scope, own, _ := strings.Cut(string(needs), " ")
	r.Scope, r.Own = store.Scope(scope), own != ""
	r.Method, r.Path, r.Access, r.Class = at[:i], at[i+1:], access, class
	r.Service, r.Tag, _ = strings.Cut(string(of), " ")
	r.in, r.out = reflect.TypeFor[In](), reflect.TypeFor[Out]()
	r.Status = cmp.Or(r.Status, 200)
	e := Endpoint[In, Out]{Route: r, decoder: NewDecoder[In]()}
	routes = append(routes, r)
	return e
}

// Request is a server's source of an endpoint's input.
type Request interface {
	Path(name string) string
	Query(name string) string
	// QueryAll returns all values of a parameter that may be sent several times.
	QueryAll(name string) []string
	Header(name string) string
	// JSON decodes the body into v, or leaves v as it is if there is no body. With loose, a
	// request without a body may have any Content-Type.
	JSON(v any, loose bool) error
}

// Checker is an input, or a body, that checks or completes itself.
type Checker interface{ Check() error }

// Decoder reads values of a type that is tagged as the input of an [Endpoint] is. A server
// uses its own where it reads more leniently than the endpoint's input says.
type Decoder[T any] struct{ input input }

// NewDecoder returns the decoder of T. It panics if T can't be read, because that is a mistake
// in its declaration.
func NewDecoder[T any]() Decoder[T] {
	in, err := inputOf(reflect.TypeFor[T]())
	if err != nil {
		panic(fmt.Sprintf("input %s: %v", reflect.TypeFor[T](), err))
	}
	return Decoder[T]{in}
}

// Unknown returns those of a query's parameters that the endpoint does not know, in order.
func (e *Endpoint[In, Out]) Unknown(query map[string][]string) (names []string) {
	for name := range query {
		if !slices.ContainsFunc(e.decoder.input.params, func(p param) bool { return p.in == "query" && p.name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Read reads and checks the endpoint's input, see [Decoder.Read].
func (e *Endpoint[In, Out]) Read(r Request) (In, error) { return e.decoder.Read(r) }

// Read reads the parameters and the body in the order of their fields, and stops at the first
// error. A [Checker] is checked before its body is read, a body after. Errors are
// InvalidArgument unless a parameter's type says otherwise: an impossible id in a path is
// NotFound.
func (t *Decoder[T]) Read(r Request) (in T, err error) {
	v := reflect.ValueOf(&in).Elem()
	before, after := t.input.params[:t.input.first], t.input.params[t.input.first:]
	if err := readAll(before, r, v); err != nil {
		return in, err
	}
	target := v
	switch t.input.body {
	case noBody:
		return in, check(&in)
	case wholeBody:
	default:
		if err := check(&in); err != nil {
			return in, err
		}
		target = v.Field(t.input.body)
	}
	body := target.Addr().Interface()
	if err := r.JSON(body, t.input.loose); err != nil {
		return in, err
	}
	if err := check(body); err != nil {
		return in, err
	}
	return in, readAll(after, r, v)
}

func check(v any) error {
	if c, ok := v.(Checker); ok {
		return c.Check()
	}
	return nil
}

// Call is a request that a client is about to send.
type Call struct {
	// Method and Path are the request's; the path is escaped.
	Method, Path string
	// Query and Header hold the parameters that are not zero.
	Query, Header map[string][]string
	// Body is sent as JSON, unless it is nil.
	Body any
}

// Call returns the request that carries in. It refuses ids that are not valid before
// anything is sent.
func (e *Endpoint[In, Out]) Call(in In) (Call, error) {
	method, _, _ := strings.Cut(e.Method, " ")
	c := Call{Method: method, Path: e.Path, Query: map[string][]string{}, Header: map[string][]string{}}
	v := reflect.ValueOf(&in).Elem()
	for i := range e.decoder.input.params {
		if err := e.decoder.input.params[i].write(&c, v); err != nil {
			return c, err
		}
	}
	switch e.decoder.input.body {
	case noBody:
	case wholeBody:
		c.Body = in
	default:
		if body := v.Field(e.decoder.input.body); !e.decoder.input.omit || !body.IsZero() {
			c.Body = body.Interface()
		}
	}
	return c, nil
}
