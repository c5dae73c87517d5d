package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"takt/http/api"
)

// ErrNoStream is returned when the controller does not stream logs.
var ErrNoStream = errors.New("the controller does not stream logs")

// maxEvent is the longest line of a stream, in bytes.
const maxEvent = 16 << 20

// TailLogs streams a build's log from after line seq and passes each line to line,
// until the build ends. It returns line's error, ErrNoStream, or the error of a
// broken stream. After a broken stream it is safe to continue after the last line
// received.
func (c *Client) TailLogs(ctx context.Context, buildID string, auth BuildAuth, seq int64, line func(api.LogEntry) error) (api.LogEnd, error) {
	header := auth.header()
	header.Set("Accept", "text/event-stream")
	setIf(header, "Last-Event-ID", positive(seq))
	cl := call{method: http.MethodGet, path: "/api/builds/{build}/logs", id: buildID, header: header}
	resp, err := c.open(ctx, cl) // the controller pings more often than StallTimeout
	if err != nil {
		return api.LogEnd{}, err
	}
	defer resp.Body.Close()
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "text/event-stream" {
		return api.LogEnd{}, fmt.Errorf("%s: %w", cl, ErrNoStream)
	}
	end, err := readTail(resp.Body, line)
	if errors.Is(err, errBroken) {
		err = noReply(ctx, ctx, cl, err)
	}
	return end, err
}

var errBroken = errors.New("the stream broke off")

// readTail reads the server-sent events log and end (WHATWG HTML, section 9.2).
func readTail(r io.Reader, line func(api.LogEntry) error) (end api.LogEnd, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	var name string
	var data []byte
	for lines.Scan() {
		field, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		switch name {
		case "log":
			var entry api.LogEntry
			if err = json.Unmarshal(data, &entry); err == nil {
				err = line(entry)
			}
		case "end":
			return end, json.Unmarshal(data, &end)
		}
		if err != nil {
			return end, err
		}
		name, data = "", nil
	}
	return end, cmp.Or(lines.Err(), errBroken)
}
