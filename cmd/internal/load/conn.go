// Package load drives a takt controller as a fleet would: many keep-alive
// connections, each sending one request at a time, as cheaply as possible,
// because the generator shares the machine with what it measures.
//
// # State
//
// A Conn owns one TCP connection, a Browser the cookie of its session. Nothing else is kept.
//
// # Failure
//
// Every error ends the run, because a load figure with errors in it is no figure.
//
// # Concurrency
//
// A Conn belongs to one goroutine. Run starts its own and waits for them.
package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Conn is one keep-alive HTTP/1.1 connection (RFC 9112). It understands what
// takt sends: a status line, header lines, and a body with Content-Length, or none
// with 204.
type Conn struct {
	nc  net.Conn
	br  *bufio.Reader
	buf []byte
}

// Dial connects to addr, host:port, on this machine: the generator refuses any
// other target.
func Dial(addr string, timeout time.Duration) (*Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("load target: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("load target %s is not a loopback address", addr)
	}
	nc, err := (&net.Dialer{Timeout: timeout}).Dial("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connecting to the load target: %w", err)
	}
	return &Conn{nc: nc, br: bufio.NewReaderSize(nc, 4096)}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// SetDeadline bounds every later read and write.
func (c *Conn) SetDeadline(t time.Time) error { return c.nc.SetDeadline(t) }

// Send writes a whole request: request line, headers, blank line, body.
func (c *Conn) Send(request []byte) error {
	_, err := c.nc.Write(request)
	return err
}

// Receive reads one reply. The body is valid until the next call.
func (c *Conn) Receive() (status int, body []byte, err error) {
	line, err := c.br.ReadSlice('\n')
	if err != nil {
		return 0, nil, fmt.Errorf("reading the status line: %w", err)
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, nil, fmt.Errorf("not a status line: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, fmt.Errorf("not a status line: %q", line)
	}
	length := -1
	for {
		line, err = c.br.ReadSlice('\n')
		if err != nil {
			return 0, nil, fmt.Errorf("reading the headers: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, nil, fmt.Errorf("bad Content-Length %q", value)
			}
		}
	}
	if status == 204 { // has none
		length = 0
	}
	if length < 0 {
		return 0, nil, errors.New("the reply has no Content-Length")
	}
	if cap(c.buf) < length {
		c.buf = make([]byte, length)
	}
	body = c.buf[:length]
	_, err = io.ReadFull(c.br, body)
	return status, body, err
}

// Do sends request and reads its reply.
func (c *Conn) Do(request []byte) (status int, body []byte, err error) {
	if err := c.Send(request); err != nil {
		return 0, nil, err
	}
	return c.Receive()
}
