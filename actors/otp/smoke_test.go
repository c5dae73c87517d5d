package otp

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type echo struct{ Base }

func (echo) Init(*Ctx) error { return nil }
func (echo) HandleCall(c *Ctx, _ From, req any) (any, error) {
	if req == "boom" {
		panic("boom")
	}
	return req, nil
}

func TestSmoke(t *testing.T) {
	s := New(Options{OnEvent: func(e Event) { t.Log(e.Kind, e.Path, e.Reason) }})
	root, err := s.StartRoot(t.Context(), "root", SupSpec{
		Intensity: 3,
		Children: []ChildSpec{
			{ID: "a", Server: func() Server { return echo{} }},
			{ID: "t", Task: func() Task {
				return Task{Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}
			}},
			{ID: "pool", Supervisor: func() SupSpec {
				return SupSpec{Strategy: Dynamic, Children: []ChildSpec{{ID: "x", Restart: Temporary, TaskArgs: func(any) Task { return Task{} }}}}
			}},
		},
	})
	require.NoError(t, err)
	v, err := Call[string](t.Context(), s.Ref("root/a"), "hi")
	require.NoError(t, err)
	require.Equal(t, "hi", v)
	_, err = Call[string](t.Context(), s.Ref("root/a"), "boom")
	var down *DownError
	require.ErrorAs(t, err, &down)
	v, err = CallWait[string](t.Context(), s.Ref("root/a"), time.Second, "again")
	require.NoError(t, err)
	require.Equal(t, "again", v)
	p, err := StartTask(t.Context(), s.Ref("root/pool"), "req", Task{Run: func(ctx context.Context) error { return errors.New("x") }})
	require.NoError(t, err)
	<-p.Done()
	t.Log(p.Reason())
	n, err := CountChildren(t.Context(), root)
	require.NoError(t, err)
	t.Log(n, s.Tree(true))
	r := s.Shutdown(t.Context())
	require.True(t, r.Clean())
	require.Equal(t, 0, s.names.size())
}
