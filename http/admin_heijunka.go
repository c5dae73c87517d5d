package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// heijunka shows and changes load levelling. Each change is answered with the status
// after it.
type heijunka struct {
	*audit
	heijunka Heijunka
}

// show handles GET /admin/heijunka: the status of load levelling.
func (h *heijunka) show(context.Context, echo.Context) (any, error) { return h.heijunka.Status(), nil }

func (h *heijunka) limits(ctx context.Context, c echo.Context) (any, error) {
	var body api.HeijunkaLimits
	while, err := readChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return nil, err
	}
	some := body.SoftLimit != nil || body.HardLimit != nil || body.Reserved != nil
	if some == body.Reset {
		return nil, edge.Invalid("soft_limit, hard_limit or reserved required, or else reset")
	}
	return h.change(ctx, entry{"set", "heijunka/limits", body.Reason, change(body)}, func(ctx context.Context) error {
		if body.Reset {
			return h.heijunka.ResetLimits(ctx)
		}
		return h.heijunka.SetLimits(ctx, body.SoftLimit, body.HardLimit, body.Reserved, while)
	})
}

func (h *heijunka) scale(ctx context.Context, c echo.Context) (any, error) {
	var body api.HeijunkaScale
	while, err := readChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return nil, err
	}
	bounds := body.Min != nil || body.Max != nil
	given := 0
	for _, yes := range []bool{body.By != nil, body.Workers != nil, bounds, body.Reset} {
		if yes {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, edge.Invalid("one of by, workers, reset, or min and max required")
	case while > 0 && !bounds:
		return nil, edge.Invalid("for belongs to min and max: scaling goes on after by and workers")
	}
	name := c.Param("name")
	return h.change(ctx, entry{"scale", "heijunka/pools/" + store.Text(name), body.Reason, change(body)}, func(ctx context.Context) error {
		switch {
		case bounds:
			return h.heijunka.SetBounds(ctx, name, body.Min, body.Max, while)
		case body.Reset:
			return h.heijunka.ResetBounds(ctx, name)
		}
		return h.heijunka.Scale(name, body.By, body.Workers)
	})
}

func (h *heijunka) affinity(ctx context.Context, c echo.Context) (any, error) {
	var body api.HeijunkaAffinity
	while, err := readChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return nil, err
	}
	switch {
	case body.Domain == "":
		return nil, edge.Invalid("domain required")
	case body.Reset && len(body.Pools) > 0:
		return nil, edge.Invalid("pools or reset, not both")
	case body.Reset && while > 0:
		return nil, edge.Invalid("for does not belong to reset")
	}
	return h.change(ctx, entry{"set", "heijunka/affinity/" + store.Text(body.Domain), body.Reason, change(body)}, func(ctx context.Context) error {
		if body.Reset {
			return h.heijunka.ResetAffinity(ctx, body.Domain)
		}
		return h.heijunka.SetAffinity(ctx, body.Domain, body.Pools, while)
	})
}

func (h *heijunka) surge(ctx context.Context, c echo.Context) (any, error) {
	var body api.HeijunkaSurge
	while, err := readChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return nil, err
	}
	do := map[string]func(ctx context.Context) error{
		"start":   func(context.Context) error { return h.heijunka.StartSurge(while) },
		"stop":    func(context.Context) error { return h.heijunka.StopSurge() },
		"enable":  func(ctx context.Context) error { return h.heijunka.SetBurst(ctx, true, while) },
		"disable": func(ctx context.Context) error { return h.heijunka.SetBurst(ctx, false, while) },
	}[body.Action]
	switch {
	case do == nil:
		return nil, edge.Invalid("action must be start, stop, enable or disable")
	case body.Action == "stop" && while > 0:
		return nil, edge.Invalid("for does not belong to stop")
	}
	return h.change(ctx, entry{body.Action, "heijunka/surge", body.Reason, change(body)}, do)
}

// rebalance handles POST /admin/heijunka/rebalance: it moves a worker to the pool with
// more work. ?dry_run=1 only says what it would do, and why.
func (h *heijunka) rebalance(ctx context.Context, c echo.Context) (any, error) {
	dry, err := edge.Flag(c, "dry_run")
	if err != nil {
		return nil, err
	}
	if dry {
		return h.heijunka.Rebalance(true)
	}
	var body api.Order
	if _, err := readChange(c, &body, new(string), &body.Reason); err != nil {
		return nil, err
	}
	var moved api.HeijunkaRebalance
	err = h.audited(ctx, entry{"rebalance", "heijunka", body.Reason, change(nil)}, func(context.Context) (err error) {
		moved, err = h.heijunka.Rebalance(false)
		return err
	})
	return moved, err
}

func (h *heijunka) change(ctx context.Context, what entry, do func(ctx context.Context) error) (any, error) {
	if err := h.audited(ctx, what, do); err != nil {
		return nil, err
	}
	return h.heijunka.Status(), nil
}

// readChange reads the body of a change into v and returns how long the change holds.
// while and why point to parts of v: the duration, and the reason, which is required.
func readChange(c echo.Context, v any, while, why *string) (time.Duration, error) {
	if err := readOrdered(c, v, why); err != nil {
		return 0, err
	}
	if *why == "" {
		return 0, edge.Invalid("reason is required")
	}
	if *while == "" {
		return 0, nil // for ever
	}
	d, err := edge.Duration(*while)
	if err != nil || d < time.Second {
		return 0, edge.Invalid(`for must be a duration such as "2h" or "90m", at least 1s`)
	}
	return d, nil
}
