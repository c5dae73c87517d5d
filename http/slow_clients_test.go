package http_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

// slowClients is how many slow clients come at once: more than any pool has places.
const slowClients = 100

// browser logs in on p with key and returns the head of a request with the session.
func browser(t *testing.T, p *pipes, key string) (request func(method, path, more string) string) {
	t.Helper()
	c, r := p.dial()
	defer c.Close()
	form := "key=" + key + "&name=tester"
	write(t, c, "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"+formHead(len(form))+form)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 303, resp.StatusCode)
	cookie := resp.Cookies()[0].String()
	return func(method, path, more string) string {
		return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nCookie: " + cookie + "\r\n" + more
	}
}

func formHead(size int) string {
	return "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n"
}

func TestSlowClientsDoNotShutOutTheDashboard(t *testing.T) {
	t.Parallel()
	const late = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nkey"
	stranger := func(text string) func(func(method, path, more string) string) string {
		return func(func(method, path, more string) string) string { return text }
	}
	for name, slow := range map[string]func(session func(method, path, more string) string) string{
		"strangers whose login does not come":     stranger("POST /login HTTP/1.1\r\nHost: localhost\r\n" + late),
		"strangers who do not read the login":     stranger("GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"strangers who do not read the style":     stranger("GET /assets/dash.css HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"strangers whose refused form comes late": stranger("POST /builds/x/cancel HTTP/1.1\r\nHost: localhost\r\n" + late),
		"sessions whose form does not come": func(session func(method, path, more string) string) string {
			return session("POST", "/builds/x/cancel", late)
		},
		"sessions that do not read a page": func(session func(method, path, more string) string) string { return session("GET", "/tree", "\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := fakeTimeWith(t, func(d *takthttp.Deps) { d.Tree = bigTree(10 << 10) })
				session := browser(t, p, apiKey)
				begin := time.Now()
				for range slowClients {
					c, _ := p.dial()
					defer c.Close()
					write(t, c, slow(session))
				}
				synctest.Wait() // all of them hold what they can
				c, r := p.dial()
				defer c.Close()
				write(t, c, session("GET", "/tree", "\r\n"))
				require.Equal(t, 200, read(t, r).status)
				require.Zero(t, time.Since(begin), "at once")
			})
		})
	}
}

// countedBody counts the bytes that are read from it.
type countedBody struct {
	io.Reader
	read int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *countedBody) Close() error { return nil }

func TestRefusedPostsLeaveTheirBodiesUnread(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	const wrong = "wrong-key-0123456789"
	for name, header := range map[string]map[string]string{
		"nothing": {},
		"wrong keys": {
			"X-API-Key": wrong, "X-Admin-Key": wrong, "X-Build-Token": wrong, "X-Worker-Token": wrong, "X-Worker-Id": "w", "X-Build-Id": "x",
			"X-HubSpot-Signature-v3": wrong, "Cookie": d.cookie + "x", "Sec-Fetch-Site": "same-origin",
		},
		"another site": {"Cookie": d.cookie, "Sec-Fetch-Site": "cross-site"},
	} {
		for _, r := range d.server.Routes() {
			if r.Method != http.MethodPost || name != "another site" && (r.Path == "/login" || r.Path == "/logout") {
				continue // anybody may log in
			}
			const size = 200 << 10 // more, and takt would read and discard it
			body := &countedBody{Reader: strings.NewReader("back=" + strings.Repeat("x", size-5))}
			req := httptest.NewRequest(http.MethodPost, strings.NewReplacer(":id", "x", ":name", "x", "*", "takt/x/restart").Replace(r.Path), body)
			req.ContentLength = size
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for k, v := range header {
				req.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			d.server.Handler().ServeHTTP(w, req)
			require.Contains(t, []int{401, 403, 404}, w.Code, "%s: %s", r.Path, name)
			require.Zero(t, body.read, "%s: %s", r.Path, name)
		}
	}
}
