package edge_test

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/http/edge/edgetest"
	"takt/store"
	"takt/store/storetest/faketime"
)

var (
	public = edgetest.Request("GET /public")
	admin  = edgetest.Request("GET /admin", "X-Admin-Key: "+adminKey)
)

// crowd opens n connections from each of eight addresses and sends text over them.
func (f *fixture) crowd(n int, text string) (all []*edgetest.Conn) {
	f.Helper()
	for a := range 8 {
		for range n {
			c := f.dial("10.0.0." + strconv.Itoa(1+a))
			go func() { _, _ = c.Write([]byte(text)) }() // the server may have closed it
			all = append(all, c)
		}
	}
	synctest.Wait()
	return all
}

// requireServed checks that others are served at once, each from its own address.
func (f *fixture) requireServed() {
	f.Helper()
	begin := time.Now()
	for from, request := range map[string]string{"10.0.1.1": public, "10.0.1.2": livez, "10.0.1.3": admin} {
		require.Equal(f, 200, f.ask(from, request), request)
	}
	require.Equal(f, begin, time.Now())
}

// Eight addresses without a key open all connections and more.
func TestConnectionsOfEightAddressesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"that send nothing": "", "that send half a header": "GET /livez HT", "that asked once": livez,
		"that send half a body": edgetest.Request("POST /file", keyed+"x", "Transfer-Encoding: chunked"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, func(o *options) { o.cfg.MaxConnections, o.cfg.MaxPerAddress = 64, 8 })
				f.crowd(8, text)
				f.requireServed()
				known := f.dial("10.0.1.3")
				for range 3 {
					f.crowd(8, text)
					f.requireServed()
				}
				require.Equal(t, 200, known.Ask(admin).Status, "nobody takes a connection of a trusted address")
				for all := []*edgetest.Conn{known}; all != nil; { // with the connection that showed the key, and after it
					for range 16 {
						all = append(all, f.dial("10.0.1.3"))
					}
					f.crowd(8, text)
					for _, c := range all {
						require.Equal(t, 200, c.Ask(livez).Status)
						require.NoError(t, c.Close())
					}
					if all[0] != known {
						break
					}
					all = []*edgetest.Conn{}
				}
			})
		})
	}
}

func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	const blind = "takt_blind-0123456789"
	ring := &store.KeyRing{}
	ring.Set([]store.NamedKey{{Name: "blind", Digest: sha256.Sum256([]byte(blind)), Scopes: []store.Scope{store.ScopeSubmit}}})
	f := setup(t, func(o *options) { o.cfg.MaxConnections, o.cfg.MaxPerAddress, o.deps.Ring = 100, 3, ring })
	of := map[string][]*edgetest.Conn{} // by address, oldest first
	open := func(from string) *edgetest.Conn {
		c := f.dial(from)
		require.Equal(t, 200, c.Ask(livez).Status)
		of[from] = append(of[from], c)
		return c
	}
	requireLimit := func(why string) *edgetest.Conn { // the next takes the place of the slowest
		newest := open("10.0.0.1")
		of["10.0.0.1"][0].Cut()
		of["10.0.0.1"] = of["10.0.0.1"][1:]
		require.Len(t, of["10.0.0.1"], 3, why)
		return newest
	}
	for range 3 {
		open("10.0.0.1")
	}
	open("10.0.0.2")
	for why, header := range map[string]string{
		"a wrong key is none": "X-Admin-Key: wrong-key-0123456789", "nobody compared it": keyed, "it lacks the scope": "X-API-Key: " + blind,
	} {
		line, want := "GET /admin", 403
		if header == keyed {
			line, want = "GET /public", 200
		}
		require.Equal(t, want, requireLimit(why).Ask(edgetest.Request(line, header)).Status, why)
	}
	newest := requireLimit("none of them was accepted")
	require.Equal(t, 200, of["10.0.0.2"][0].Ask(livez).Status, "others have room")
	require.Equal(t, 200, newest.Ask(admin).Status)
	for range 10 {
		open("10.0.0.1")
	}
	for _, c := range of["10.0.0.1"] {
		require.Equal(t, 200, c.Ask(livez).Status, "a fleet behind one address has shown its key")
	}
}

func TestConnectionsOfHTTP2HaveFewRequests(t *testing.T) {
	t.Parallel()
	do := &requests{hold: make(chan struct{})}
	f := setup(t, onTLS(t), func(o *options) { o.deps.Requests = do })
	client, dialled := f.client(), atomic.Int64{}
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, n, addr string) (net.Conn, error) { // see client
		dialled.Add(1)
		return f.memory.DialContext(ctx, n, addr)
	}
	require.Equal(t, 200, f.send(client, "GET", "/livez", nil).Status) // it learns the limit
	replies := make(chan edgetest.Reply, 33)
	for i, n := range []int{32, 1} {
		for range n {
			go func() { replies <- f.send(client, "GET", "/get", nil) }()
		}
		require.Eventually(t, func() bool { return do.running.Load() == int64(32+i) }, waitFor, tick)
		require.EqualValues(t, 1+i, dialled.Load())
	}
	close(do.hold)
	for range 33 {
		require.Equal(t, 200, (<-replies).Status)
	}
}

// Those who need no key hold no more than a share, and of an address and of all together; the
// oldest is cut for one that has less.
func TestPublicRequestsHaveAShare(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rule, request string
		all, address  int
	}{
		"requests": {edge.RulePublic, public, 512, 128},
		"bodies":   {edge.RulePublicBodies, edgetest.Request("POST /monitor", "X-Worker-Id: w", "X-Build-Id: b", "Transfer-Encoding: chunked") + edgetest.Chunk("{"), 1024, 256},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				do := &requests{hold: make(chan struct{})}
				f := setup(t, func(o *options) {
					o.deps.Requests, o.cfg.TelemetryWithoutKey = do, true
					o.do = func(context.Context, echo.Context) (any, error) { return "done", nil }
				})
				holding := func() int {
					synctest.Wait()
					return f.Limit(tt.rule).Counts().Held
				}
				for range tt.address {
					go func(c *edgetest.Conn) { _, _ = c.Write([]byte(tt.request)) }(f.dial("10.0.0.1"))
				}
				require.Equal(t, tt.address, holding())
				got := f.dial("10.0.0.1").Ask(tt.request)
				require.Equal(t, 503, got.Status)
				require.Contains(t, got.Body, `"overloaded"`)
				require.NotEmpty(t, got.Header.Get("Retry-After"))
				f.crowd(tt.all/8, tt.request)
				require.Equal(t, tt.all, holding())
				newest, replies := f.dial("10.0.0.99"), make(chan error, 1)
				newest.Send(tt.request)
				go func() { _, err := newest.Next(); replies <- err }()
				require.Equal(t, tt.all, holding(), "the oldest was cut for it")
				require.Empty(t, replies, "it waits, and was not refused")
				require.Positive(t, f.metric("takt_limit_refused_total"))
				require.Equal(t, 200, f.ask("10.0.1.2", livez))
				require.Equal(t, 200, f.ask("10.0.0.1", admin))
				f.dial("10.0.0.1").Send(tt.request)
				if holding(); name == "requests" {
					require.EqualValues(t, tt.all+1, do.running.Load(), "an address that has shown a key has no such share")
				}
				close(do.hold)
				faketime.Pass(time.Minute)
				require.Zero(t, holding(), "all are given back")
			})
		})
	}
}

func TestWrongKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reported []store.AuditEntry
		f := setup(t, func(o *options) {
			o.cfg.WrongKeys = 0 // the default
			o.deps.Report = func(e store.AuditEntry) { reported = append(reported, e) }
		})
		const wrong = "wrong-key-0123456789"
		show := func(from, header string) int { return f.ask(from, edgetest.Request("GET /admin", header)) }
		for range 2 {
			for range 10 {
				require.Equal(t, 403, show("10.0.0.1", "X-Admin-Key: "+wrong))
			}
			for range 3 {
				got := f.dial("10.0.0.1").Ask(edgetest.Request("GET /admin", "X-Admin-Key: "+wrong))
				require.Equal(t, 429, got.Status)
				require.Contains(t, got.Body, `"error":"Too many wrong keys"`)
				require.Equal(t, "60", got.Header.Get("Retry-After"))
				require.Equal(t, 200, show("10.0.0.1", "X-Admin-Key: "+adminKey), "a right key is never refused")
				require.Equal(t, 401, show("10.0.0.1", keyed), "none is not a wrong one")
			}
			require.Equal(t, 403, show("10.0.0.2", "X-Admin-Key: "+wrong), "others are not slowed")
			for range 10 {
				require.Equal(t, 200, f.ask("10.0.0.3", edgetest.Request("GET /build", "X-API-Key: "+wrong, "X-Build-Token: x")), "something else decides")
			}
			require.Equal(t, 429, f.ask("10.0.0.3", edgetest.Request("GET /get", "X-API-Key: "+wrong)), "they were counted")
			faketime.Pass(time.Minute) // after which they are forgotten
		}
		require.Equal(t, 6, strings.Count(f.logs.String(), `"level":"warn"`), "once a minute for each address")
		require.Contains(t, f.logs.String(), `"remote":"10.0.0.1"`)
		require.NotContains(t, f.logs.String(), wrong)
		require.Len(t, reported, 6, "once for each address, not for each key")
		require.Equal(t, []string{"unknown client@10.0.0.1", "wrong key", "Invalid admin key"}, []string{reported[0].Actor, reported[0].Action, reported[0].Outcome})
		require.InDelta(t, 50, f.metric("takt_http_wrong_keys_total"), 0)
	})
}

// An address that guesses waits for each answer and loses its connection; no other request
// waits, nor does a right key of that address.
func TestWrongKeysAreAnsweredSlowlyAndRightOnesAtOnce(t *testing.T) {
	t.Parallel()
	for name, guess := range map[string]string{
		"API key":                      edgetest.Request("GET /get", "X-API-Key: wrong"),
		"admin key":                    edgetest.Request("GET /admin", "X-Admin-Key: wrong"),
		"admin key beside the API key": edgetest.Request("GET /get", keyed, "X-Admin-Key: wrong"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, func(o *options) {
					o.cfg.WrongKeys = 0 // the default
					o.do = func(_ context.Context, c echo.Context) (any, error) {
						if c.Request().Header.Get(edge.HeaderAdmin) == "wrong" {
							return nil, edge.ErrWrongAdminKey
						}
						return "done", nil
					}
				})
				begin := time.Now()
				for range 100 {
					require.False(t, f.dial("").Ask(guess).Closes)
				}
				require.Zero(t, time.Since(begin))
				require.True(t, f.dial("").Ask(guess).Closes, "further guesses do not wait on the connection")
				require.Equal(t, time.Second, time.Since(begin))

				answered := make(chan error, 20)
				for range 20 {
					c := f.dial("")
					c.Send(guess)
					go func() { _, err := c.Next(); answered <- err }()
				}
				synctest.Wait()
				require.Len(t, answered, 4, "so many wait, others are cut off")
				for range 4 {
					require.Error(t, <-answered)
				}
				begin = time.Now()
				require.Equal(t, 200, f.ask("", admin))
				require.Equal(t, 401, f.ask("", edgetest.Request("GET /admin")), "none is not a wrong one")
				require.Zero(t, time.Since(begin))
				for range 16 {
					require.NoError(t, <-answered)
				}
				require.Equal(t, time.Second, time.Since(begin))
			})
		})
	}
}

func TestKeysThatAreUnsetOrPoor(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *options) { o.cfg.AdminKey = "" })
	require.Equal(t, 401, f.ask("", edgetest.Request("GET /admin", "X-Admin-Key: ")))
	require.Equal(t, 403, f.ask("", edgetest.Request("GET /admin", "X-Admin-Key: x")))
	for key, ok := range map[string]bool{
		strings.Repeat("a", 32): false, strings.Repeat("abcdefg", 5): false, "0123456701234567": true, apiKey: true,
	} {
		for _, cfg := range []edge.Config{{APIKey: key}, {APIKey: "another-" + apiKey, AdminKey: key}} {
			if err := cfg.Validate(); ok {
				require.NoError(t, err, key)
			} else {
				require.ErrorContains(t, err, "needs at least 8 different characters")
				require.NotContains(t, err.Error(), key)
			}
		}
	}
}
