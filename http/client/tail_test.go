package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

func TestReadTail(t *testing.T) {
	t.Parallel()
	const one = "id: 7\nevent: log\ndata: {\"seq\":7,\"message\":\"a: b\"}\n\n"
	const end = "event: end\ndata: {\"build_id\":\"b\",\"state\":\"failed\"}\n\n"
	read := func(text string) (lines []api.LogEntry, end api.LogEnd, err error) {
		end, err = readTail(strings.NewReader(text), func(l api.LogEntry) error { lines = append(lines, l); return nil })
		return lines, end, err
	}
	t.Run("lines and the end, whatever is between them", func(t *testing.T) {
		t.Parallel()
		lines, last, err := read(": ping\n\nretry: 5\n\n" + one + "event:other\ndata:x\n\n" + one + end + one)
		require.NoError(t, err)
		require.Equal(t, []api.LogEntry{{Seq: 7, Message: "a: b"}, {Seq: 7, Message: "a: b"}}, lines)
		require.Equal(t, api.LogEnd{BuildID: "b", State: "failed"}, last)
	})
	t.Run("a stream that breaks off says so, and half an event is none", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"", one, one + strings.TrimSuffix(end, "\n"), one + end[:20]} {
			lines, _, err := read(text)
			require.ErrorIs(t, err, errBroken)
			require.Len(t, lines, strings.Count(text, "log"))
		}
	})
	t.Run("the reader's error ends it", func(t *testing.T) {
		t.Parallel()
		full := errors.New("disk full")
		_, err := readTail(strings.NewReader(one+one), func(api.LogEntry) error { return full })
		require.ErrorIs(t, err, full)
		_, _, err = read("event: log\ndata: {\n\n")
		require.Error(t, err)
		require.NotErrorIs(t, err, errBroken)
	})
}

func FuzzReadTail(f *testing.F) {
	f.Add("id: 7\nevent: log\ndata: {\"seq\":7}\n\nevent: end\ndata: {}\n\n")
	f.Add("data\ndata: a\ndata: b\n\n:\n\n\r\n\r\n")
	f.Add("event: log\n\nevent: end\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		_, _ = readTail(strings.NewReader(text), func(api.LogEntry) error { n++; return nil })
		require.LessOrEqual(t, n, strings.Count(text, "log"))
	})
}
