package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"takt/http/api"
)

// Events streams what happens on the controller to each until ctx ends, each returns an
// error, or the stream breaks off. topics selects; nil means all. topic is "" for a
// sign of life: one at the start, then one every 15 s. After an error it is safe to call
// Events again, but what has happened in between is lost.
func (c *Client) Events(ctx context.Context, topics []string, each func(topic string, data json.RawMessage) error) error {
	cl := of(api.FollowEvents, api.FollowEventsIn{Topics: strings.Join(topics, ",")})
	cl.header.Set("Accept", "text/event-stream")
	resp, err := c.open(ctx, cl)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = readEvents(resp.Body, func(topic string, data []byte) error { return each(topic, bytes.Clone(data)) })
	if errors.Is(err, errBroken) {
		return noReply(ctx, ctx, cl, err)
	}
	return err
}

// Clock returns the time that the controller tells in its replies, to the second. Safe
// to repeat.
func (c *Client) Clock(ctx context.Context) (time.Time, error) {
	cl := of(api.IsAlive, api.None{})
	resp, err := c.open(ctx, cl)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	defer drain(resp.Body)
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return at, unexpected(cl, resp, err)
	}
	return at, nil
}

var errBroken = errors.New("the stream broke off")

// readEvents reads server-sent events (WHATWG HTML, section 9.2) until each returns an
// error or r ends, which is errBroken. It calls each with an empty name and without data
// for lines that are no event.
func readEvents(r io.Reader, each func(name string, data []byte) error) error {
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
		if err := each(name, data); err != nil {
			return err
		}
		name, data = "", nil
	}
	return cmp.Or(lines.Err(), errBroken)
}
