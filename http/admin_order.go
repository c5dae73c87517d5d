package http

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	orderTimeout    = 10 * time.Second
	maxOrderTimeout = 60 * time.Second
	// maxReason is the longest reason, in bytes.
	maxReason = 1000
	// healthTick is how often the tree is looked at until all is well.
	healthTick = 10 * time.Millisecond
)

// handleOrder handles POST /admin/tree/*, whose last segment is the action:
// restart, terminate or start. It answers when the node is as it was asked for
// and healthy; if the order stops the HTTP server itself, it answers 202 first.
func (s *Server) handleOrder(ctx context.Context, c echo.Context) error {
	o, err := s.readOrder(c)
	if err != nil {
		return err
	}
	root := s.deps.Tree(false)
	p, err := makePlan(&root, o)
	if store.CodeOf(err) == store.NotFound { // perhaps it is a dynamic child
		root = s.deps.Tree(true)
		p, err = makePlan(&root, o)
	}
	if err != nil {
		return err
	}
	if o.dryRun {
		return s.reply(c, http.StatusOK, s.describe(p, o))
	}
	entry := s.entry(c, o.action, p.node.Path, o.reason, map[string]any{
		"affected": p.affected(), "force": o.force, "timeout": o.timeout.Seconds(),
	})
	s.begin(ctx, &entry)
	if p.detached {
		if err := s.reply(c, http.StatusAccepted, s.describe(p, o)); err != nil {
			return err
		}
		c.Response().Flush()
		o.timeout = maxOrderTimeout // running requests get to end, and nobody waits
	}
	done := make(chan error, 1)
	s.deps.Background(func(ctx context.Context) {
		err := s.carryOut(ctx, o, p)
		written := s.conclude(ctx, &entry, err)
		done <- err
		if !written {
			s.concludeLater(ctx, &entry)
		}
	})
	if p.detached {
		return nil
	}
	return s.awaitOrder(ctx, c, p, done)
}

// awaitOrder answers with the node, or why it is not as it was asked for.
func (s *Server) awaitOrder(ctx context.Context, c echo.Context, p plan, done <-chan error) error {
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-stopping(ctx).Done():
		return store.NewError(store.Unavailable, "The controller is restarting; the order is carried out")
	}
	root := s.deps.Tree(false)
	node := findNode(&root, p.node.Path)
	if node == nil {
		return store.NewError(store.Unavailable, p.node.Path+" is gone again")
	}
	return s.reply(c, http.StatusOK, node)
}

// readOrder reads an order from path, query and body.
func (s *Server) readOrder(c echo.Context) (o order, err error) {
	whole := strings.Trim(c.Param("*"), "/")
	i := strings.LastIndexByte(whole, '/')
	o.path, o.action = whole[:max(i, 0)], whole[i+1:]
	switch o.action {
	case restart, terminate, start:
	default:
		return o, store.NewError(store.NotFound, "No such action: restart, terminate or start")
	}
	if o.timeout, err = orderWait(c.QueryParam("timeout")); err != nil {
		return o, err
	}
	if o.force, err = flag(c, "force"); err != nil {
		return o, err
	}
	if o.dryRun, err = flag(c, "dry_run"); err != nil {
		return o, err
	}
	var body api.Order
	if _, err := s.readJSON(c, &body); err != nil {
		return o, err
	}
	if o.reason, err = reason(body.Reason); err != nil {
		return o, err
	}
	if o.reason == "" && !o.dryRun {
		return o, invalid("reason is required")
	}
	return o, nil
}

// orderWait reads ?timeout=, seconds or a duration such as 30s.
func orderWait(v string) (time.Duration, error) {
	if v == "" {
		return orderTimeout, nil
	}
	d, err := time.ParseDuration(v)
	if n, ferr := strconv.ParseFloat(v, 64); ferr == nil && n > 0 && n <= maxOrderTimeout.Seconds() {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 || d > maxOrderTimeout {
		return 0, invalid("timeout must be more than 0 and at most 60 seconds")
	}
	return d, nil
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

// reason makes an operator's reason fit for the audit.
func reason(v string) (string, error) {
	v = strings.TrimSpace(text(v))
	if len(v) > maxReason {
		return "", invalid("reason must have at most 1000 bytes")
	}
	return v, nil
}

// carryOut has the tree do what was ordered and waits until all is well again.
func (s *Server) carryOut(ctx context.Context, o order, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	at := p.node.Path
	switch o.action {
	case terminate:
		return s.deps.Operator.Terminate(ctx, at)
	case start:
		if err := s.deps.Operator.StartChild(ctx, at); err != nil {
			return err
		}
		return s.awaitHealth(ctx, o, p, nil)
	default:
		err := s.deps.Operator.Restart(ctx, at)
		if err != nil && store.CodeOf(err) != store.Unavailable {
			return err
		}
		return s.awaitHealth(ctx, o, p, err) // a failed start is tried again
	}
}

// awaitHealth returns when all of the plan's group run and are not suspended,
// else, at the end of ctx, who is not. failed is what went wrong before.
func (s *Server) awaitHealth(ctx context.Context, o order, p plan, failed error) error {
	tick := time.NewTicker(healthTick)
	defer tick.Stop()
	for {
		bad := s.firstAiling(p)
		if bad == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return store.Wrap(store.Timeout, bad+" after "+o.timeout.String(), errors.Join(failed, context.Cause(ctx)))
		}
	}
}

// firstAiling says in words what of the plan's group is not well; "" if all is.
func (s *Server) firstAiling(p plan) string {
	root := s.deps.Tree(false)
	for _, n := range p.group {
		if n.Restart == "temporary" {
			continue // stopped with the others, and not started again
		}
		now := findNode(&root, n.Path)
		if now == nil {
			return n.Path + " is not there"
		}
		if bad := ailing(now); bad != nil {
			why := bad.Path + " is still " + bad.Status
			if bad.Detail != "" {
				why += " (" + bad.Detail + ")"
			}
			return why
		}
	}
	return ""
}

// entry is the audit entry of a request.
func (s *Server) entry(c echo.Context, action, target, why string, detail map[string]any) store.AuditEntry {
	detail["request_id"] = requestID(c)
	raw, err := json.Marshal(detail)
	if err != nil {
		raw = nil // can't be: detail holds plain values
	}
	return store.AuditEntry{
		At: time.Now(), Actor: "admin@" + remoteHost(c.Request()), Action: action, Target: target, Reason: why, Detail: raw,
	}
}
