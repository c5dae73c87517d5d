// Package edgetest has a listener in memory and clients that write what they want, for tests of
// servers. Deadlines of its connections keep the time of a testing/synctest bubble.
//
// # State
//
// A [Listener] keeps connections until they are accepted.
//
// # Failure
//
// Every failure of a client ends the test.
//
// # Concurrency
//
// A [Listener] may be shared; a [Conn] belongs to one goroutine.
package edgetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Listener is a listener whose connections are in memory. It can be served any number of times.
type Listener struct {
	conns chan net.Conn
	mu    sync.Mutex
	over  chan struct{} // guarded by mu; closed by a deadline that has passed
}

// Listen returns a new listener.
func Listen() *Listener { return &Listener{conns: make(chan net.Conn), over: make(chan struct{})} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	over := l.over
	l.mu.Unlock()
	select {
	case c := <-l.conns:
		return c, nil
	case <-over:
		return nil, os.ErrDeadlineExceeded
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { return nil }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// SetDeadline ends a running Accept if t has passed, which is all that a server wants of it.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.over:
		if t.IsZero() {
			l.over = make(chan struct{})
		}
	default:
		if !t.IsZero() {
			close(l.over)
		}
	}
	return nil
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (c addressed) RemoteAddr() net.Addr { return c.from }

func (l *Listener) connect(from string) net.Conn {
	client, server := net.Pipe()
	if from != "" {
		server = addressed{server, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}
	}
	l.conns <- server
	return client
}

// DialContext is for an [http.Transport].
func (l *Listener) DialContext(context.Context, string, string) (net.Conn, error) {
	return l.connect(""), nil
}

// Dial opens a connection. from is the address of its client; "" is none.
func (l *Listener) Dial(t *testing.T, from string) *Conn {
	t.Helper()
	return NewConn(t, l.connect(from))
}

// Conn is a client's end of a connection.
type Conn struct {
	net.Conn
	In *bufio.Reader
	t  *testing.T
}

// NewConn returns a Conn, which is closed at the end of the test.
func NewConn(t *testing.T, c net.Conn) *Conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	return &Conn{c, bufio.NewReader(c), t}
}

// DialTCP opens a connection to an address on this machine.
func DialTCP(t *testing.T, addr string) *Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return NewConn(t, c)
}

// TLS does a handshake and returns a Conn that speaks TLS.
func (c *Conn) TLS(cfg *tls.Config) *Conn { return NewConn(c.t, tls.Client(c.Conn, cfg)) }

// Send writes text, all of which the server has to take.
func (c *Conn) Send(text string) {
	c.t.Helper()
	_, err := io.WriteString(c.Conn, text)
	require.NoError(c.t, err)
}

// Reply is a reply as it was read.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Closes bool // the connection, after it
}

// Next reads a reply.
func (c *Conn) Next() (r Reply, err error) {
	resp, err := http.ReadResponse(c.In, nil)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Reply{resp.StatusCode, resp.Header, string(body), resp.Close}, err
}

// Reply reads a reply, which has to come.
func (c *Conn) Reply() Reply {
	c.t.Helper()
	r, err := c.Next()
	require.NoError(c.t, err)
	return r
}

// Ask sends a request and reads its reply.
func (c *Conn) Ask(text string) Reply {
	c.t.Helper()
	c.Send(text)
	return c.Reply()
}

// Cut waits until the server has closed the connection, and returns how long that took.
func (c *Conn) Cut() time.Duration {
	c.t.Helper()
	begin := time.Now()
	_, err := io.Copy(io.Discard, c.In)
	require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded, "the server keeps the connection")
	return time.Since(begin)
}

// Request is the text of a request without a body, with headers such as "X-API-Key: x".
func Request(line string, headers ...string) string {
	return strings.Join(append([]string{line + " HTTP/1.1", "Host: takt"}, headers...), "\r\n") + "\r\n\r\n"
}

// Chunk is a piece of a body as it is sent.
func Chunk(piece string) string {
	return strconv.FormatInt(int64(len(piece)), 16) + "\r\n" + piece + "\r\n"
}

// Zeros are any number of zero bytes.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Logs collects what is logged. Safe for concurrent use.
type Logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
