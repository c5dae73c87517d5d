package http_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/storetest/needs"
)

// accepting is a throttle that accepts every action.
type accepting struct{ takthttp.Throttle }

func (accepting) Accept(context.Context, store.Action) (store.Acceptance, error) {
	return store.Acceptance{State: store.ActionWaiting}, nil
}

// patient runs requests of installations until their context ends.
type patient struct{ counted }

func (p *patient) Do(ctx context.Context, w store.Work, fn func(context.Context) error) error {
	if w.Route != "/api/oauth/authorize" {
		return fn(ctx)
	}
	p.admitted.Add(1)
	defer p.admitted.Add(-1)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*patient) Counts(context.Context) (store.Counts, error) { return store.Counts{}, nil }

// besieged is a server that eight strangers try to use up.
type besieged struct {
	*testing.T
	url  string
	held []net.Conn // by strangers
}

// strangers opens n connections from each of eight addresses and sends text over them.
func (c *besieged) strangers(n int, text string) {
	c.Helper()
	needs.Files(c, 4096)
	for a := range 8 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+a))}}
		for range n {
			conn, err := d.DialContext(c.Context(), "tcp", strings.TrimPrefix(c.url, "http://"))
			require.NoError(c, err)
			c.Cleanup(func() { conn.Close() })
			require.NoError(c, conn.SetDeadline(time.Now().Add(waitFor)))
			_, _ = io.WriteString(conn, text) // the server may have closed it
			c.held = append(c.held, conn)
		}
	}
}

// ask sends a request over a connection of its own from local and returns the status.
func (c *besieged) ask(local, text string) int {
	c.Helper()
	conn, r := dialFrom(c.T, local, c.url)
	defer conn.Close()
	write(c.T, conn, text)
	return read(c.T, r).status
}

const (
	authorizeHead = "GET /api/oauth/authorize HTTP/1.1\r\nHost: takt\r\n\r\n"
	livezHead     = "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n"
	webhookBody   = `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":1},"context":{"workflowId":1}}`
)

func signedWebhook() string {
	h := http.Header{}
	hubspottest.Sign(h, clientSecret, "POST", "http://takt/api/hubspot/action", []byte(webhookBody), time.Now())
	h.Set("Content-Length", fmt.Sprint(len(webhookBody)))
	var text strings.Builder
	text.WriteString("POST /api/hubspot/action HTTP/1.1\r\nHost: takt\r\n")
	_ = h.Write(&text)
	return text.String() + "\r\n" + webhookBody
}

// requireServed checks that an honest stranger, a probe, an operator and HubSpot are
// served, each from its own address.
func (c *besieged) requireServed() {
	c.Helper()
	require.Equal(c, 200, c.ask("127.0.0.20", "GET /openapi.yaml HTTP/1.1\r\nHost: takt\r\n\r\n"), "a stranger")
	require.Equal(c, 200, c.ask("127.0.0.21", livezHead), "a probe")
	require.Equal(c, 200, c.ask("127.0.0.22", adminHead), "an operator")
	require.Equal(c, 204, c.ask("127.0.0.23", signedWebhook()), "HubSpot")
}

func besiege(t *testing.T, change ...func(*takthttp.Config)) (*besieged, *patient) {
	t.Helper()
	do := &patient{}
	change = append(change, func(c *takthttp.Config) { c.HubSpotSecret, c.PublicURL = clientSecret, "http://takt" })
	url := served(t, takthttp.Deps{Requests: do, OAuth: installer{}, Throttle: accepting{}, Tree: bigTree(1)}, change...)
	return &besieged{T: t, url: url}, do
}

func TestEightStrangersWithAllConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"that send nothing": "", "that send half a header": "GET /livez HT", "that asked once": livezHead,
		"that send half a body": signedHead(func(http.Header) {}) + chunkOf("{"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := besiege(t, func(c *takthttp.Config) { c.MaxConnections, c.MaxPerAddress = 64, 8 })
			c.strangers(8, text)
			c.requireServed()
			known, answers := dialFrom(t, "127.0.0.22", c.url)
			for range 3 {
				c.strangers(8, text)
				c.requireServed()
			}
			write(t, known, adminHead)
			require.Equal(t, 200, read(t, answers).status, "no stranger takes a connection of a known address")
			all := []net.Conn{known}
			for range 2 { // with the connection that showed the key, and after it
				for range 16 {
					conn, _ := dialFrom(t, "127.0.0.22", c.url)
					all = append(all, conn)
				}
				c.strangers(8, text)
				for _, conn := range all {
					write(t, conn, livezHead)
					require.Equal(t, 200, read(t, bufio.NewReader(conn)).status, "strangers take connections from strangers only")
					require.NoError(t, conn.Close())
				}
				all = nil // it stays known
			}
		})
	}
}

func TestSlowBodiesOfEightStrangersKeepNoWebhookOut(t *testing.T) {
	t.Parallel()
	c, _ := besiege(t)
	c.strangers(128, signedHead(func(http.Header) {})+chunkOf("{")) // all of them hold 1024
	for range 10 {
		c.requireServed()
	}
	for range 10 {
		c.strangers(1, signedHead(func(http.Header) {})+chunkOf("{"))
		c.requireServed()
	}
}

func TestStrangersThatHoldTheirShareKeepNoOtherOut(t *testing.T) {
	t.Parallel()
	c, do := besiege(t)
	c.strangers(64, authorizeHead)
	require.Eventually(t, func() bool { return do.admitted.Load() == 512 }, waitFor, tick)
	cut := make(chan struct{}, 8*64)
	for _, conn := range c.held {
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			cut <- struct{}{}
		}()
	}
	other, _ := dialFrom(t, "127.0.0.30", c.url)
	write(t, other, authorizeHead)
	<-cut // for the other
	require.Eventually(t, func() bool { return do.admitted.Load() == 512 }, waitFor, tick)
	for range 5 {
		c.requireServed()
	}
}

func TestSharesOfStrangersEndWithARightSignature(t *testing.T) {
	t.Parallel()
	c, do := besiege(t)
	ask := func() {
		conn, _ := dialFrom(t, "127.0.0.2", c.url)
		write(t, conn, authorizeHead)
	}
	for range 128 {
		ask()
	}
	require.Eventually(t, func() bool { return do.admitted.Load() == 128 }, waitFor, tick)
	require.Equal(t, 503, c.ask("127.0.0.2", authorizeHead))
	require.Equal(t, 401, c.ask("127.0.0.2", strings.Replace(signedWebhook(), `"c"`, `"d"`, 1)))
	require.Equal(t, 503, c.ask("127.0.0.2", authorizeHead), "a wrong signature is none")
	require.Equal(t, 204, c.ask("127.0.0.2", signedWebhook()))
	ask()
	require.Eventually(t, func() bool { return do.admitted.Load() == 129 }, waitFor, tick)
}
