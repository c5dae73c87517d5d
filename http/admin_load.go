package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
)

// handleLoad handles GET /admin/heijunka: everything about load levelling.
func (s *Server) handleLoad(_ context.Context, c echo.Context) error {
	return s.reply(c, http.StatusOK, s.deps.Load.Status())
}

// handleLoadLimits handles PUT /admin/heijunka/limits.
func (s *Server) handleLoadLimits(ctx context.Context, c echo.Context) error {
	var body api.LoadLimits
	while, err := s.readLoadChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return err
	}
	some := body.SoftLimit != nil || body.HardLimit != nil || body.Reserved != nil
	if some == body.Reset {
		return invalid("soft_limit, hard_limit or reserved required, or else reset")
	}
	return s.changeLoad(ctx, c, "set", "heijunka/limits", body.Reason, body, func(ctx context.Context) error {
		return s.deps.Load.SetLimits(ctx, body, while)
	})
}

// handleLoadScale handles POST /admin/heijunka/pools/:name/scale.
func (s *Server) handleLoadScale(ctx context.Context, c echo.Context) error {
	var body api.LoadScale
	while, err := s.readLoadChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return err
	}
	bounds := body.Min != nil || body.Max != nil
	given := 0
	for _, yes := range []bool{body.By != nil, body.Workers != nil, bounds} {
		if yes {
			given++
		}
	}
	switch {
	case given != 1:
		return invalid("one of by, workers, or min and max required")
	case while > 0 && !bounds:
		return invalid("for belongs to min and max: scaling goes on after by and workers")
	}
	name := c.Param("name")
	return s.changeLoad(ctx, c, "scale", "heijunka/pools/"+text(name), body.Reason, body, func(ctx context.Context) error {
		return s.deps.Load.Scale(ctx, name, body, while)
	})
}

// handleLoadAffinity handles PUT /admin/heijunka/affinity.
func (s *Server) handleLoadAffinity(ctx context.Context, c echo.Context) error {
	var body api.LoadAffinity
	while, err := s.readLoadChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return err
	}
	if body.Domain == "" {
		return invalid("domain required")
	}
	return s.changeLoad(ctx, c, "set", "heijunka/affinity/"+text(body.Domain), body.Reason, body, func(ctx context.Context) error {
		return s.deps.Load.SetAffinity(ctx, body, while)
	})
}

// handleLoadSurge handles POST /admin/heijunka/surge.
func (s *Server) handleLoadSurge(ctx context.Context, c echo.Context) error {
	var body api.LoadSurge
	while, err := s.readLoadChange(c, &body, &body.For, &body.Reason)
	if err != nil {
		return err
	}
	switch body.Action {
	case "start", "enable", "disable":
	case "stop":
		if while > 0 {
			return invalid("for does not belong to stop")
		}
	default:
		return invalid("action must be start, stop, enable or disable")
	}
	return s.changeLoad(ctx, c, body.Action, "heijunka/surge", body.Reason, body, func(ctx context.Context) error {
		return s.deps.Load.Surge(ctx, body.Action, while)
	})
}

// handleLoadRebalance handles POST /admin/heijunka/rebalance: it moves a worker
// to where there is more to do. ?dry_run=1 only says what it would do, and why.
func (s *Server) handleLoadRebalance(ctx context.Context, c echo.Context) error {
	dry, err := flag(c, "dry_run")
	if err != nil {
		return err
	}
	if dry {
		r, err := s.deps.Load.Rebalance(ctx, true)
		if err != nil {
			return err
		}
		return s.reply(c, http.StatusOK, r)
	}
	var body api.Order
	if _, err := s.readLoadChange(c, &body, new(string), &body.Reason); err != nil {
		return err
	}
	var moved api.LoadRebalance
	err = s.audited(ctx, c, "rebalance", "heijunka", body.Reason, nil, func(ctx context.Context) (err error) {
		moved, err = s.deps.Load.Rebalance(ctx, false)
		return err
	})
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, moved)
}

// readLoadChange reads the body of a change into v, of which while and why are
// parts: for how long, and the reason, which is required.
func (s *Server) readLoadChange(c echo.Context, v any, while, why *string) (time.Duration, error) {
	if _, err := s.readJSON(c, v); err != nil {
		return 0, err
	}
	var err error
	if *why, err = reason(*why); err != nil {
		return 0, err
	}
	if *why == "" {
		return 0, invalid("reason is required")
	}
	return changeFor(*while)
}

// changeFor reads how long a change holds: a duration such as 2h or 90m, or
// seconds. 0 is for ever.
func changeFor(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if n, nerr := strconv.Atoi(v); nerr == nil && n > 0 && n < 1<<31 {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < time.Second {
		return 0, invalid(`for must be a duration such as "2h" or "90m", at least 1s`)
	}
	return d, nil
}

// changeLoad does a change and replies with how everything is then.
func (s *Server) changeLoad(ctx context.Context, c echo.Context, action, target, why string, body any, do func(context.Context) error) error {
	if err := s.audited(ctx, c, action, target, why, body, do); err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, s.deps.Load.Status())
}

// audited does something that is written down before and after.
func (s *Server) audited(ctx context.Context, c echo.Context, action, target, why string, body any, do func(context.Context) error) error {
	entry := s.entry(c, action, target, why, map[string]any{"change": body})
	s.begin(ctx, &entry)
	err := do(ctx)
	if !s.conclude(ctx, &entry, err) {
		s.deps.Background(func(ctx context.Context) { s.concludeLater(ctx, &entry) })
	}
	return err
}
