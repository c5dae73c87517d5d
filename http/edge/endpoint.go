package edge

import (
	"context"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
)

// On returns the route of an endpoint that a plain function handles. ctx ends with the
// request, or when it is told to end; [CallerOf] says who sent it.
func On[In, Out any](s *Server, e api.Endpoint[In, Out], handle func(ctx context.Context, in In) (Out, error)) Route {
	return OnAs(s, e, handle)
}

// OnAs is like [On] for a handler whose input has another type than the endpoint's, see
// [api.Decoder].
func OnAs[In, As, Out any](s *Server, e api.Endpoint[In, Out], handle func(ctx context.Context, in As) (Out, error)) Route {
	return OnRequest(s, e, func(ctx context.Context, _ echo.Context, in As) (any, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, err
		}
		if _, none := any(out).(api.None); none {
			return Reply{Status: e.Status}, nil
		}
		return Reply{Status: e.Status, Body: out}, nil
	})
}

// OnList is like [On] for a long list, which is read and sent page by page.
func OnList[In, Out any](s *Server, e api.Endpoint[In, Out], handle func(ctx context.Context, in In) (List, error)) Route {
	return OnRequest(s, e, func(ctx context.Context, c echo.Context, in In) (any, error) {
		if unknown := e.Unknown(c.QueryParams()); len(unknown) > 0 {
			c.Response().Header().Set(api.HeaderIgnored, ignored(unknown))
		}
		return handle(ctx, in)
	})
}

// ignored returns the value of a header that names parameters, so that no name can be read as
// several.
func ignored(names []string) string {
	const most, longest = 10, 64
	for i, name := range names {
		names[i] = url.QueryEscape(name[:min(len(name), longest)])
	}
	return strings.Join(names[:min(len(names), most)], ", ")
}

// OnRequest is like [OnAs] for a handler that needs the request itself: to read a form, or to
// send its reply, after which it returns nil.
func OnRequest[In, As, Out any](s *Server, e api.Endpoint[In, Out], handle func(ctx context.Context, c echo.Context, in As) (any, error)) Route {
	read, r := Reader[As](), s.Of(e.Route)
	r.Handle = func(ctx context.Context, c echo.Context) (any, error) {
		if e.Strict {
			if unknown := e.Unknown(c.QueryParams()); len(unknown) > 0 {
				return nil, Invalid("unknown parameter " + ignored(unknown))
			}
		}
		in, err := read(c)
		if err != nil {
			return nil, err
		}
		return handle(ctx, c, in)
	}
	return r
}

// Reader returns a function that reads an input from a request, see [api.Decoder].
func Reader[In any]() func(c echo.Context) (In, error) {
	decoder := api.NewDecoder[In]()
	return func(c echo.Context) (In, error) { return decoder.Read(request{c}) }
}

// Read reads and checks the input of a request for an endpoint.
func Read[In, Out any](c echo.Context, e api.Endpoint[In, Out]) (In, error) {
	return e.Read(request{c})
}

// Of returns the route of an endpoint without a handler. How it is served follows from its
// access and class; a stream or a poll sets its own Serve.
func (s *Server) Of(e api.Route) Route {
	r := Route{Method: e.Method, Path: e.Path, Service: e.Service, Access: e.Access, Class: e.Class, Scope: e.Scope, Own: e.Own, Body: s.Config.MaxJSON}
	if most, ok := s.bodies[e.Body]; ok {
		r.Body = most
	}
	switch {
	case e.Class == api.Ops:
		r.Serve = s.Direct
	case e.Access == api.Public:
		r.Serve = s.Open
	case e.Class == api.Transfer:
		r.Serve = s.Admit
	default:
		r.Serve = s.Levelled
	}
	return r
}

// RequestOf returns the source from which an endpoint's input is read.
func RequestOf(c echo.Context) api.Request { return request{c} }

// request implements api.Request.
type request struct{ c echo.Context }

func (r request) Path(name string) string   { return r.c.Param(name) }
func (r request) Query(name string) string  { return r.c.QueryParam(name) }
func (r request) Header(name string) string { return r.c.Request().Header.Get(name) }

func (r request) QueryAll(name string) []string { return r.c.QueryParams()[name] }

func (r request) JSON(v any, loose bool) error {
	if loose && r.c.Request().ContentLength == 0 {
		return nil
	}
	_, err := ReadJSON(r.c, v)
	return err
}
