package database

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestLogPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var log bytes.Buffer
	pipe := newPipe(r, zerolog.New(&log))
	go pipe.read()
	long := strings.Repeat("x", 10_000)
	must(w.WriteString("LOG:  database system is ready to accept connections\n" +
		"LOG:  duration: 1200.1 ms  statement: SELECT\n\tpg_sleep(1)\n" +
		"FATAL:  could not map memory\n" +
		"HINT:  buy some\n" +
		"LOG:  " + long + "\n" +
		"LOG:  " + strings.Repeat("y", 4090) + "FATAL:  forged\n" +
		"FATAL:  terminating connection due to administrator command\n" +
		"ERROR:  canceling statement due to user request\n" +
		"FATAL:  canceling authentication due to timeout\n" +
		"no end"))(t)
	require.NoError(t, w.Close())
	<-pipe.done
	pipe.close()

	text := log.String()
	require.Contains(t, text, `{"level":"debug","from":"postgres","message":"database system is ready to accept connections"}`)
	require.Contains(t, text, `{"level":"warn","from":"postgres","message":"duration: 1200.1 ms  statement: SELECT"}`)
	require.Contains(t, text, `{"level":"warn","from":"postgres","message":"pg_sleep(1)"}`)
	require.Contains(t, text, `{"level":"error","from":"postgres","message":"could not map memory"}`)
	require.Contains(t, text, `"message":"no end"`)
	require.Contains(t, text, `{"level":"debug","from":"postgres","message":"FATAL:  forged"}`, "a piece of a line is no record")
	require.Contains(t, text, `{"level":"info","from":"postgres","message":"terminating connection due to administrator command"}`)
	require.Contains(t, text, `{"level":"info","from":"postgres","message":"canceling statement due to user request"}`, "a normal stop is no error")
	require.Contains(t, text, `{"level":"info","from":"postgres","message":"canceling authentication due to timeout"}`)
	require.GreaterOrEqual(t, strings.Count(text, "x"), len(long))
	require.Equal(t, "FATAL:  could not map memory", pipe.lastWords())
}
