// Package tracingtest gives tests a collector of traces: the OpenTelemetry Collector, a
// real one, on a free port of the loopback interface, which writes what it gets to a file.
//
// # State
//
// A Collector holds its process and the file.
//
// # Failure
//
// A collector that does not start fails the test. Package needs says what a missing program
// does.
//
// # Concurrency
//
// A Collector belongs to one test.
package tracingtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

// Collector is a running collector.
type Collector struct {
	// Endpoint is its URL, for OTEL_EXPORTER_OTLP_ENDPOINT.
	Endpoint string

	tb   testing.TB
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

// Span is a span as the collector got it.
type Span struct {
	Trace  string `json:"traceId"`
	ID     string `json:"spanId"`
	Parent string `json:"parentSpanId"` // "" for the first span of a trace
	Name   string `json:"name"`
	Begin  int64  `json:"startTimeUnixNano,string"`
	End    int64  `json:"endTimeUnixNano,string"`
	Status struct {
		Code int `json:"code"` // 2 for an error
	} `json:"status"`
	Links []struct {
		Trace string `json:"traceId"`
		Span  string `json:"spanId"`
	} `json:"links"`
	Events []struct {
		Name       string     `json:"name"`
		Attributes attributes `json:"attributes"`
	} `json:"events"`
	Attributes attributes `json:"attributes"`
	// Service is the program that made it.
	Service string `json:"-"`
}

// attributes are those of a span, an event or a resource, as OTLP writes them.
type attributes []struct {
	Key   string `json:"key"`
	Value struct {
		String string `json:"stringValue"`
		Int    string `json:"intValue"`
	} `json:"value"`
}

// Get returns the attribute key as text, or "".
func (a attributes) Get(key string) string {
	for _, one := range a {
		if one.Key == key {
			return one.Value.String + one.Value.Int
		}
	}
	return ""
}

// Start starts a collector. It ends with the test.
func Start(tb testing.TB) *Collector {
	tb.Helper()
	program := needs.Collector(tb)
	c := &Collector{tb: tb, dir: tb.TempDir()}
	tb.Cleanup(c.stop)
	for range 20 {
		if c.launch(program) {
			return c
		}
	}
	tb.Fatalf("the collector does not start: %s", c.log())
	return nil
}

// launch starts the process and reports whether it answers; a port may have been taken
// meanwhile.
func (c *Collector) launch(program string) bool {
	ln, err := new(net.ListenConfig).Listen(c.tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(c.tb, err)
	address := ln.Addr().String()
	require.NoError(c.tb, ln.Close())
	config := fmt.Sprintf(`
receivers: {otlp: {protocols: {http: {endpoint: "%s"}}}}
exporters: {file: {path: "%s"}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [file]}}
`, address, c.file())
	require.NoError(c.tb, os.WriteFile(filepath.Join(c.dir, "config.yaml"), []byte(config), 0o600))
	log, err := os.Create(filepath.Join(c.dir, "log"))
	require.NoError(c.tb, err)
	defer log.Close()
	c.cmd = exec.Command(program, "--config", filepath.Join(c.dir, "config.yaml")) // it outlives calls
	c.cmd.Stdout, c.cmd.Stderr = log, log
	wait, err := tied.Start(c.cmd)
	require.NoError(c.tb, err)
	done := make(chan struct{})
	c.done = done
	go func() {
		defer close(done)
		_ = wait()
	}()
	c.Endpoint = "http://" + address
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if c.answers() {
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// answers reports whether the collector takes an empty export.
func (c *Collector) answers() bool {
	req, err := http.NewRequestWithContext(c.tb.Context(), http.MethodPost, c.Endpoint+"/v1/traces", bytes.NewReader([]byte("{}")))
	require.NoError(c.tb, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

func (c *Collector) file() string { return filepath.Join(c.dir, "spans.json") }

func (c *Collector) log() string {
	out, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	return string(out)
}

func (c *Collector) stop() {
	if c.done == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// Spans ends the collector and returns all that it got, and the same as it was written.
func (c *Collector) Spans() (spans []Span, raw []byte) {
	c.tb.Helper()
	c.stop()
	raw, err := os.ReadFile(c.file())
	require.NoError(c.tb, err, "%s", c.log())
	for lines := json.NewDecoder(bytes.NewReader(raw)); ; {
		var batch struct {
			Resources []struct {
				Resource struct {
					Attributes attributes `json:"attributes"`
				} `json:"resource"`
				Scopes []struct {
					Spans []Span `json:"spans"`
				} `json:"scopeSpans"`
			} `json:"resourceSpans"`
		}
		err := lines.Decode(&batch)
		if errors.Is(err, io.EOF) {
			return spans, raw
		}
		require.NoError(c.tb, err)
		for _, r := range batch.Resources {
			for _, s := range r.Scopes {
				for _, span := range s.Spans {
					span.Service = r.Resource.Attributes.Get("service.name")
					spans = append(spans, span)
				}
			}
		}
	}
}
