package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"strconv"

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
	in := api.ReadLogsIn{BuildAccess: auth.of(buildID)}
	if seq > 0 {
		in.LastEventID = strconv.FormatInt(seq, 10)
	}
	cl := of(api.ReadLogs, in)
	cl.header.Set("Accept", "text/event-stream")
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

// errEnd ends the reading of a stream whose last event was read.
var errEnd = errors.New("the log has ended")

// readTail reads the events log and end.
func readTail(r io.Reader, line func(api.LogEntry) error) (end api.LogEnd, err error) {
	err = readEvents(r, func(name string, data []byte) error {
		switch name {
		case "log":
			var entry api.LogEntry
			if err := json.Unmarshal(data, &entry); err != nil {
				return err
			}
			return line(entry)
		case "end":
			if err := json.Unmarshal(data, &end); err != nil {
				return err
			}
			return errEnd
		default:
			return nil
		}
	})
	if errors.Is(err, errEnd) {
		err = nil
	}
	return end, err
}
