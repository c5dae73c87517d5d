package http_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// next returns the path of the page that follows a list's, "" if there is none.
func next(t *testing.T, r reply) string {
	t.Helper()
	link := r.header.Get("Link")
	if link == "" {
		return ""
	}
	m := regexp.MustCompile(`^<(/[^>]*)>; rel="next"$`).FindStringSubmatch(link)
	require.NotNil(t, m, link)
	return m[1]
}

// Each list of the API leads to its next page, with what else was asked, and refuses what is
// no cursor of its own.
func TestListsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, sql := range []string{
		`WITH n AS (INSERT INTO builds (id, platform, token_hash, state, worker_id) SELECT 'b' || i, 'ios', '\x00', 'building', 'w1' FROM generate_series(1, 5) i RETURNING id, seq)
			INSERT INTO build_ids SELECT id, seq FROM n`,
		`WITH n AS (SELECT 'w' || i AS id FROM generate_series(1, 5) i), d AS (INSERT INTO worker_details (worker_id, name, capabilities) SELECT id, id, '{}' FROM n)
			INSERT INTO workers (id, slots) SELECT id, 1 FROM n`,
		`INSERT INTO deployments (id, request, credential_id) SELECT 'd' || i, '{}', 'x' FROM generate_series(1, 5) i`,
		`INSERT INTO audit (actor, action, target, reason, detail) SELECT 'x', 'y', 'takt/' || i, '', '{}' FROM generate_series(1, 5) i`,
		`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) SELECT 4, i, 1, 1, 'second' FROM generate_series(1, 5) i`,
		`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) SELECT 'queue:4:' || i || ':1:0', 4, i, 1, '0' FROM generate_series(1, 5) i`,
	} {
		_, err := b.pool.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	for path, id := range map[string]string{
		"/api/builds?platform=ios": "id", "/api/builds?status=building&format=object": "id", "/api/builds/active?": "id", "/api/workers?status=idle": "id",
		"/api/deployments?": "id", "/admin/audit?": "target", "/api/config/4?": "action_id", "/admin/throttle/queues?portal=4": "id",
	} {
		header := key("X-Admin-Key", adminKey)
		seen := map[any]bool{}
		at := path + "&limit=2"
		for pages := 1; at != ""; pages++ {
			r := b.send("GET", at, header, "")
			require.Equal(t, 200, r.status, r.body)
			elements := regexp.MustCompile(`"`+id+`":("[^"]*"|\d+)[,}]`).FindAllStringSubmatch(r.body, -1)
			for _, e := range elements {
				require.False(t, seen[e[1]], "%s: %s twice", path, e[1])
				seen[e[1]] = true
			}
			if at = next(t, r); at != "" {
				require.Len(t, elements, 2, path)
				require.Subset(t, query(t, at), query(t, path+"&limit=2"), "what was asked stays")
			}
			require.LessOrEqual(t, pages, 4, path)
		}
		require.Len(t, seen, 5, path)
		r := b.send("GET", path+"&cursor=WzEsIm90aGVyIiw3XQ", header, "")
		require.Equal(t, 400, r.status, path)
		requireProblem(t, r, "Invalid cursor: take it from the previous page, with the same filter and order", "invalid_argument")
	}
}

func query(t *testing.T, path string) map[string][]string {
	t.Helper()
	u, err := url.Parse(path)
	require.NoError(t, err)
	return u.Query()
}

// paged is a store of workers whose pages after the first wait for gate, and fail if it
// says so.
type paged struct {
	takthttp.Workers
	gate chan error
}

func (p paged) List(ctx context.Context, f store.WorkerFilter, page store.Page) ([]store.WorkerDetail, store.Cursor, error) {
	if page.Limit > 200 {
		return nil, "", errors.New("so many rows at once")
	}
	if page.After != "" && page.Skip == 0 {
		if err := <-p.gate; err != nil {
			return nil, "", err
		}
	}
	return p.Workers.List(ctx, f, page)
}

// A long list is sent while it is read, page by page, and is complete; one that can't be
// read to its end is cut off.
func TestLongListsAreSentPageByPage(t *testing.T) {
	t.Parallel()
	gate := make(chan error, 10)
	b := setupWith(t, func(d *takthttp.Deps) { d.Workers = paged{d.Workers, gate} })
	_, err := b.pool.Exec(t.Context(), `WITH n AS (SELECT 'w' || i AS id FROM generate_series(1, 450) i),
		d AS (INSERT INTO worker_details (worker_id, name, capabilities) SELECT id, id, '{}' FROM n)
		INSERT INTO workers (id, slots) SELECT id, 1 FROM n`)
	require.NoError(t, err)
	begin := func() (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/api/workers", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-API-Key", apiKey)
		resp, err := b.client.Transport.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		const head = `{"workers":[{"id":"w`
		got := make([]byte, len(head))
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err, "it comes before the second page was read")
		require.Equal(t, head, string(got)) //nolint:testifylint // a part of JSON
		return resp, head
	}
	b.client = browserClient(t) // the other one reads all of a reply
	resp, head := begin()
	gate <- nil
	gate <- nil
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	list := decode[api.WorkerList](t, reply{body: head + string(rest)})
	require.Equal(t, 450, list.Total)
	ids := map[string]bool{}
	for _, w := range list.Workers {
		ids[w.ID] = true
	}
	require.Len(t, ids, 450, "each once")

	resp, _ = begin()
	gate <- errors.New("the database has gone")
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "nobody takes a part for all of it")
	require.NoError(t, resp.Body.Close())

	close(gate)
	for _, limit := range []int{7, 200, 207, 450, 10_000} {
		seen, path := []string{}, fmt.Sprintf("/api/workers?limit=%d", limit)
		for path != "" {
			r := b.send("GET", path, key(), "")
			page := decode[api.WorkerList](t, r).Workers
			for _, w := range page {
				seen = append(seen, w.ID)
			}
			if path = next(t, r); path != "" {
				require.Len(t, page, limit, "a page that another one follows is full")
			}
		}
		require.Len(t, seen, 450)
		require.True(t, slices.IsSortedFunc(seen, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }), "each once, %d a page", limit)
	}

	_, err = b.pool.Exec(t.Context(), `WITH n AS (
			INSERT INTO builds (id, platform, token_hash, state, worker_id) SELECT 'b' || i, 'ios', '\x00', 'building', 'w1' FROM generate_series(1, 410) i RETURNING id, seq)
		INSERT INTO build_ids SELECT id, seq FROM n`)
	require.NoError(t, err)
	builds := decode[[]api.BuildItem](t, b.send("GET", "/api/builds", key(), ""))
	require.Len(t, builds, 410)
	require.Equal(t, []string{"b410", "b1"}, []string{builds[0].ID, builds[409].ID})
	object := decode[api.BuildList](t, b.send("GET", "/api/builds?format=object&limit=400", key(), ""))
	require.Equal(t, 400, object.Total)
	require.Equal(t, builds[:400], object.Builds)
	require.Len(t, decode[api.ActiveBuilds](t, b.send("GET", "/api/builds/active", key(), "")).Builds, 410)
}
