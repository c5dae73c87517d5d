package http

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// limitParam reads ?limit=, otherwise if there is none. More than most is
// refused, unless that is 0: then the caller shows what it can.
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

// sequence reads a number that counts from 0; "" is 0.
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

// positive reads a number that names something.
func positive(name, v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid(name + " must be a positive integer")
	}
	return n, nil
}

// flag reads a query parameter that is on or off.
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

// attempt reads X-Build-Attempt; 0 if it was not sent.
func attempt(h http.Header) (int, error) {
	v := h.Get(api.HeaderBuildAttempt)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 1 {
		return 0, invalid("Invalid X-Build-Attempt header")
	}
	return int(n), nil
}

// buildParam reads a build's id from the path.
func buildParam(c echo.Context) (string, error) {
	id := c.Param("id")
	if !store.ValidID(id) {
		return "", buildNotFound()
	}
	return id, nil
}

// workerParam reads a worker's id from the path.
func workerParam(c echo.Context, name string) (string, error) {
	id := c.Param(name)
	if !store.ValidID(id) {
		return "", workerNotFound()
	}
	return id, nil
}

// deploymentParam reads a deployment's id from the path.
func deploymentParam(c echo.Context) (string, error) {
	id := c.Param("id")
	if !store.ValidID(id) {
		return "", store.NewError(store.NotFound, "Deployment not found")
	}
	return id, nil
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }
