package otp

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever happens in whatever order, the context of a request's process is what a context that is
// derived at the beginning would be.
func TestTaskContextIsLikeADerivedOne(t *testing.T) {
	t.Parallel()
	type key struct{}
	base := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		parent, endParent := context.WithCancelCause(context.WithValue(base, key{}, 1))
		model, endModel := context.WithCancelCause(parent)
		defer endParent(nil)
		defer endModel(nil)
		c := &taskContext{parent: parent}
		var below context.Context
		ended := false
		for i := range rapid.IntRange(1, 6).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"client leaves", "end", "wait", "derive"}).Draw(t, "step") {
			case "client leaves":
				endParent(errors.New("the client has left"))
			case "end":
				cause := fmt.Errorf("end %d", i)
				c.end(cause)
				endModel(cause)
				ended = true
			case "wait":
				_ = c.Done()
			case "derive":
				var cancel context.CancelCauseFunc
				below, cancel = context.WithCancelCause(c)
				defer cancel(nil)
			}
		}
		require.Equal(t, model.Err(), c.Err())
		require.Equal(t, context.Cause(model), context.Cause(c))
		require.Equal(t, 1, c.Value(key{}))
		if below != nil {
			require.Equal(t, context.Cause(model), context.Cause(below))
		}
		select {
		case <-c.Done():
			require.Error(t, model.Err())
		default:
			require.NoError(t, model.Err())
			require.False(t, ended)
		}
	})
}
