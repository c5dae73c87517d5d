package otp

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A supervisor that is killed begins no child any more, not even one that it would only
// end again: its Init could run beside that of the one before it.
func TestNobodyIsStartedAfterAKill(t *testing.T) {
	t.Parallel()
	idle := func(ctx context.Context) error { <-ctx.Done(); return nil }
	sys := New(Options{Logger: zerolog.Nop()})
	t.Cleanup(func() { require.Empty(t, sys.Shutdown(context.WithoutCancel(t.Context()))) })
	root, err := sys.StartRoot(t.Context(), "root", SupSpec{Children: []ChildSpec{{ID: "a", Task: idle}}})
	require.NoError(t, err)
	began := make(chan int, 1)
	_, err = ask(t.Context(), root, func(s *supervisor) (*Proc, error) {
		before := len(s.linked())
		s.p.Kill()
		p, err := s.start(s.rows[0])
		began <- len(s.linked()) - before
		return p, err
	})
	require.ErrorIs(t, err, ErrKilled)
	require.Zero(t, <-began)
	<-root.Done()
}
