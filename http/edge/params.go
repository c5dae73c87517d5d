package edge

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// LimitParam reads ?limit=; otherwise is the default. A limit over most is refused. If
// most is 0, there is no maximum and the caller shows what it can.
func LimitParam(c echo.Context, otherwise, most int) (int, error) {
	v := c.QueryParam("limit")
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	switch {
	case most > 0 && (err != nil || n < 1 || n > most):
		return 0, Invalid(fmt.Sprintf("limit must be 1 to %d", most))
	case err != nil || n < 1:
		return 0, Invalid("limit must be a positive whole number")
	}
	return n, nil
}

// Sequence reads a number that starts at 0; "" is 0.
func Sequence(name, v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, Invalid(name + " must be a whole number")
	}
	return n, nil
}

// Positive reads a positive number, such as an id.
func Positive(name, v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n <= 0 {
		return 0, Invalid(name + " must be a positive integer")
	}
	return n, nil
}

// Flag reads a boolean query parameter.
func Flag(c echo.Context, name string) (bool, error) {
	v := c.QueryParam(name)
	if v == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(v)
	if err != nil {
		return false, Invalid(name + " must be 1 or 0")
	}
	return on, nil
}

// Duration reads a duration such as 90m, or a number of seconds.
func Duration(v string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(v, 64); err == nil && math.Abs(n) < 1<<31 {
		return time.Duration(n * float64(time.Second)), nil
	}
	return time.ParseDuration(v)
}

// ByID returns the handler of a route that needs only the id in its path. An impossible
// id is not found.
func ByID(notFound func() error, handle func(ctx context.Context, id string) (any, error)) Handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		id, err := IDParam(c, "id", notFound)
		if err != nil {
			return nil, err
		}
		return handle(ctx, id)
	}
}

// IDParam reads an id from the path.
func IDParam(c echo.Context, name string, notFound func() error) (string, error) {
	id := c.Param(name)
	if !store.ValidID(id) {
		return "", notFound()
	}
	return id, nil
}
