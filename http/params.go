package http

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// limitParam reads ?limit=; otherwise is the default. A limit over most is refused. If
// most is 0, there is no maximum and the caller shows what it can.
func limitParam(c echo.Context, otherwise, most int) (int, error) {
	v := c.QueryParam("limit")
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	switch {
	case most > 0 && (err != nil || n < 1 || n > most):
		return 0, invalid(fmt.Sprintf("limit must be 1 to %d", most))
	case err != nil || n < 1:
		return 0, invalid("limit must be a positive whole number")
	}
	return n, nil
}

// sequence reads a number that starts at 0; "" is 0.
func sequence(name, v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid(name + " must be a whole number")
	}
	return n, nil
}

// positive reads a positive number, such as an id.
func positive(name, v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid(name + " must be a positive integer")
	}
	return n, nil
}

// flag reads a boolean query parameter.
func flag(c echo.Context, name string) (bool, error) {
	v := c.QueryParam(name)
	if v == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(v)
	if err != nil {
		return false, invalid(name + " must be 1 or 0")
	}
	return on, nil
}

// duration reads a duration such as 90m, or a number of seconds.
func duration(v string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(v, 64); err == nil && math.Abs(n) < 1<<31 {
		return time.Duration(n * float64(time.Second)), nil
	}
	return time.ParseDuration(v)
}

// identify reads the attempt and the process of the worker that a beat comes from. Either
// may be absent.
func identify(beat *store.Beat, h http.Header) (err error) {
	if v := h.Get(api.HeaderBuildAttempt); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 {
			return invalid("Invalid X-Build-Attempt header")
		}
		beat.Attempt = int(n)
	}
	beat.Instance, err = instance(h)
	return err
}

// instance reads X-Worker-Instance; "" if it was not sent.
func instance(h http.Header) (string, error) {
	id := header(h, keyInstance)
	if id != "" && !store.ValidID(id) {
		return "", invalid("Invalid X-Worker-Instance header")
	}
	return id, nil
}

// byID returns the handler of a route that needs only the id in its path. An impossible
// id is not found.
func byID(notFound func() error, handle func(ctx context.Context, id string) (any, error)) handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		id, err := idParam(c, "id", notFound)
		if err != nil {
			return nil, err
		}
		return handle(ctx, id)
	}
}

// idParam reads an id from the path.
func idParam(c echo.Context, name string, notFound func() error) (string, error) {
	id := c.Param(name)
	if !store.ValidID(id) {
		return "", notFound()
	}
	return id, nil
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }

func deploymentNotFound() error { return store.NewError(store.NotFound, "Deployment not found") }

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}
