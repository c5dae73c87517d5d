package jobs

import (
	"bytes"
	"log/slog" // River logs with it
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestALeaderThatCannotResignIsNoError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(zerolog.NewSlogHandler(zerolog.New(&out).Hook(resigning{})))
	log.Error("Elector: Error attempting to resign", "err", "closed pool")
	require.Empty(t, out.String())
	log.Error("Elector: Error attempting to elect", "err", "closed pool")
	require.NotEmpty(t, out.String())
}
