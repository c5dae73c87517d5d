package client

import (
	"context"
	"net/http"
	"net/url"
	"regexp"

	"takt/http/api"
	"takt/store"
)

// pages reads up to limit rows of a list, or all if limit is 0. It asks for at most most rows
// at once; 0 leaves that to the controller. in returns the input for a page.
func pages[In, Out, Row any](
	ctx context.Context, c *Client, e api.Endpoint[In, Out], limit, most int, in func(limit int, from api.Continue) In, rows func(Out) []Row,
) (all []Row, err error) {
	if limit < 0 {
		return nil, store.NewError(store.InvalidArgument, "the limit must not be negative")
	}
	var from api.Continue
	all = []Row{} // [] in JSON
	for {
		n := most
		if left := limit - len(all); limit > 0 && (most == 0 || left < most) {
			n = left
		}
		cl := of(e, in(n, from))
		var next string
		cl.next = &next
		out, err := ask[Out](ctx, c, cl)
		if err != nil {
			return nil, err
		}
		all = append(all, rows(out)...)
		switch {
		case limit > 0 && len(all) >= limit:
			return all[:limit], nil // the controller may ignore the limit
		case next == "" || next == from.Cursor:
			return all, nil
		}
		from.Cursor = next
	}
}

// nextLink finds the next page in the header Link (RFC 8288).
var nextLink = regexp.MustCompile(`<([^>]*)>[^,<]*;\s*rel="?next\b`)

// nextCursor returns the cursor of the next page, "" if a reply has none.
func nextCursor(h http.Header) string {
	for _, line := range h["Link"] {
		if m := nextLink.FindStringSubmatch(line); m != nil {
			if at, err := url.Parse(m[1]); err == nil {
				return at.Query().Get("cursor")
			}
		}
	}
	return ""
}
