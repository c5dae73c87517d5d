package http_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/http/tlstest"
	"takt/store"
)

// healthy is what /health looks at.
type healthy struct{ roomy }

func (healthy) Counts(context.Context) (store.Counts, error) { return store.Counts{Pending: 3}, nil }

// bigTree is a reply of so many bytes.
func bigTree(size int) func(bool) api.TreeNode {
	return func(bool) api.TreeNode { return api.TreeNode{ID: strings.Repeat("t", size), Path: "takt"} }
}

const adminHead = "GET /admin/tree HTTP/1.1\r\nHost: takt\r\nX-Admin-Key: " + adminKey + "\r\n\r\n"

func TestClientsThatNeverReadTakeNothingFromProbesAndOperators(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTimeWith(t, func(d *takthttp.Deps) {
			d.Tree, d.Builds = bigTree(10), healthy{roomy{&instant{}}}
		})
		ask := func(head string) int {
			c, r := p.dial()
			defer c.Close()
			write(t, c, head)
			return read(t, r).status
		}
		get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: takt\r\n\r\n" }
		begin := time.Now()
		var stalled []*bufio.Reader
		for _, path := range []string{"/livez", "/readyz", "/health", "/openapi.yaml"} {
			for range 80 {
				c, r := p.dial()
				defer c.Close()
				stalled = append(stalled, r)
				write(t, c, get(path))
			}
		}
		synctest.Wait() // all of them are being answered
		for _, path := range []string{"/livez", "/readyz", "/healthz", "/health", "/api/health"} {
			require.Equal(t, 200, ask(get(path)), path)
		}
		require.Equal(t, 503, ask(get("/openapi.yaml")), "what is big has a limit")
		require.Equal(t, 200, ask(adminHead))
		require.Equal(t, 200, ask(get("/openapi.yaml")), "but not for an address that has shown a key")
		require.Zero(t, time.Since(begin))
		time.Sleep(5*time.Second + 1) //nolint:forbidigo // fake time
		for _, r := range stalled {
			require.Zero(t, cutAfter(t, r), "it was cut off")
		}
	})
}

func TestLongAnswersAreSentForAsLongAsTheyAreRead(t *testing.T) {
	t.Parallel()
	const size, step = 1 << 20, 32 << 10
	synctest.Test(t, func(t *testing.T) {
		p := fakeTimeWith(t, func(d *takthttp.Deps) { d.Tree = bigTree(size) })
		slow := func(until int64) (n int64, err error) {
			c, r := p.dial()
			defer c.Close()
			write(t, c, adminHead)
			for err == nil && n < until {
				var more int64
				more, err = io.CopyN(io.Discard, r, step)
				n += more
				time.Sleep(2 * time.Second) //nolint:forbidigo // fake time
			}
			time.Sleep(4 * time.Second) //nolint:forbidigo // fake time
			more, _ := io.Copy(io.Discard, bufio.NewReader(io.LimitReader(r, size/2)))
			return n + more, err
		}
		n, err := slow(size)
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, int64(size), "a slow reader gets all")
		n, _ = slow(size / 4)
		require.Less(t, n, int64(size/2), "one that pauses gets no more")
	})
}

func TestStreamsThatAreNotReadAreReset(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewAuthority(t), t.TempDir()
	cert, key := ca.Issue(t, dir, 1)
	pair, err := edge.OpenCertificate(cert, key, zerolog.Nop())
	require.NoError(t, err)
	url := served(t, takthttp.Deps{TLS: pair, Tree: bigTree(16 << 20)}, func(c *takthttp.Config) { c.MaxBypass = 1 })
	url = strings.Replace(url, "http://", "https://", 1)
	client, admin := tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, true), map[string]string{"X-Admin-Key": adminKey}
	begin := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/admin/tree", nil)
	require.NoError(t, err)
	req.Header.Set("X-Admin-Key", adminKey)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 503, send(t, client, "GET", url+"/admin/tree", admin, nil).status)
	require.Eventually(t, func() bool {
		r, err := try(t.Context(), client, "GET", url+"/admin/tree", admin, nil)
		return err == nil && r.status == 200
	}, waitFor, 50*tick, "its place is free again")
	require.Less(t, time.Since(begin), 15*time.Second)
	_, err = io.Copy(io.Discard, resp.Body)
	require.Error(t, err)
}
