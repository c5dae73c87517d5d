package http

import (
	"context"
	"strings"

	"takt/http/api"
	"takt/http/attention"
	"takt/http/edge"
	"takt/store"
)

// problems shows what needs attention, and acknowledges it.
type problems struct {
	edge   *edge.Server
	audit  *audit
	reader *attention.Reader
}

func (h *problems) routes() []edge.Route {
	return []edge.Route{
		edge.On(h.edge, api.ShowAttention, h.show),
		edge.On(h.edge, api.AcknowledgeProblem, h.acknowledge),
		edge.On(h.edge, api.RecallAcknowledgement, h.recall),
	}
}

func (h *problems) show(ctx context.Context, _ api.None) (api.Attention, error) {
	s, err := h.reader.Now(ctx)
	if err != nil {
		return api.Attention{}, err
	}
	caller := edge.CallerOf(ctx)
	operator := caller.Operator() || caller.Key.May(store.ScopeOperate)
	return api.Attention{Problems: edge.Each(s.For(operator), newProblem)}, nil
}

// newProblem converts a problem.
func newProblem(p attention.Problem) api.NeedsAttention {
	out := api.NeedsAttention{Kind: p.Kind, Subjects: append([]string{}, p.Subjects...), Severity: p.Severity, Text: p.Text, Todo: p.Todo, Command: p.Command}
	if !p.Since.IsZero() {
		at := api.FormatTime(p.Since)
		out.Since = &at
	}
	if a := p.By; a != nil {
		out.Acknowledged = &api.Acknowledged{By: a.By, Reason: a.Reason, At: api.FormatTime(a.At), Until: api.FormatTime(a.Until)}
	}
	return out
}

func (h *problems) acknowledge(ctx context.Context, in api.Acknowledge) (out api.Attention, err error) {
	lasts, err := in.Lasts()
	if err != nil {
		return out, err
	}
	err = h.audit.do(ctx, entry{"acknowledge", target(in.Kind, in.Subjects), in.Reason, map[string]any{"for": in.For}}, func(ctx context.Context) error {
		return h.reader.Acknowledge(ctx, in.Kind, in.Subjects, edge.CallerOf(ctx).Actor(), in.Reason, lasts)
	})
	if err != nil {
		return out, err
	}
	return h.show(ctx, api.None{})
}

func (h *problems) recall(ctx context.Context, in api.Recall) (out api.Attention, err error) {
	err = h.audit.do(ctx, entry{"recall acknowledgement", target(in.Kind, in.Subjects), in.Reason, map[string]any{}}, func(ctx context.Context) error {
		return h.reader.Recall(ctx, in.Kind, in.Subjects)
	})
	if err != nil {
		return out, err
	}
	return h.show(ctx, api.None{})
}

// target names a problem in the audit.
func target(kind string, subjects []string) string {
	if len(subjects) == 0 {
		return "problem/" + kind
	}
	return store.Clip("problem/"+kind+"/"+strings.Join(subjects, ","), 500)
}
