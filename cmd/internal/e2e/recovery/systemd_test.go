package recovery

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
)

// manager is the socket on which systemd is notified.
type manager struct {
	path string
	told chan map[string]string
}

func newManager(t *testing.T) manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "takt-notify-") // the path of a socket is short
	require.NoError(t, err)
	m := manager{filepath.Join(dir, "socket"), make(chan map[string]string, 1000)}
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(t, err)
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := ln.Read(buf)
			if err != nil {
				return
			}
			told := map[string]string{}
			for line := range strings.SplitSeq(string(buf[:n]), "\n") {
				name, value, _ := strings.Cut(line, "=")
				told[name] = value
			}
			m.told <- told
		}
	})
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		reading.Wait()
		require.NoError(t, os.RemoveAll(dir))
	})
	return m
}

// next returns the next notification.
func (m manager) next(t *testing.T) map[string]string {
	t.Helper()
	select {
	case told := <-m.told:
		return told
	case <-time.After(takttest.Patience):
		require.Fail(t, "nothing was notified")
		return nil
	}
}

func TestSystemdIsNotified(t *testing.T) {
	t.Parallel()
	env, m := takttest.NewEnv(t), newManager(t)
	env.Settings = append(env.Settings, "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=3000000")
	begun := time.Now()
	c := env.StartController("takt")

	ready := m.next(t)
	require.Equal(t, "1", ready["READY"], "nothing else comes before it")
	require.Equal(t, "serving at "+c.Address, ready["STATUS"])
	t.Logf("ready after %s", time.Since(begun).Round(time.Millisecond))
	require.Equal(t, "1", m.next(t)["WATCHDOG"])

	server := postmaster(t, c)
	all := append(childrenOf(t, server), server)
	signal := func(sig syscall.Signal) {
		for _, pid := range all {
			_ = syscall.Kill(pid, sig) // a child may have ended
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	for told := m.next(t); !strings.HasPrefix(told["STATUS"], "the database is unavailable"); {
		require.Equal(t, "1", told["WATCHDOG"])
		told = m.next(t)
	}
	for begun := time.Now(); time.Since(begun) < 6*time.Second; {
		last := time.Now()
		require.Equal(t, "1", m.next(t)["WATCHDOG"], "an outage of the database trips no watchdog")
		require.Less(t, time.Since(last), 3*time.Second)
	}
	signal(syscall.SIGCONT)
	for told := m.next(t); told["STATUS"] != "serving at "+c.Address; {
		told = m.next(t)
	}

	require.NoError(t, c.Signal(syscall.SIGTERM))
	told := m.next(t)
	for told["WATCHDOG"] == "1" {
		told = m.next(t)
	}
	require.Equal(t, "1", told["STOPPING"])
	<-c.Done()
	require.NoError(t, c.Failure())
	require.Empty(t, m.told)
}

// READY comes when requests are answered, not before.
func TestSystemdIsNotifiedWhenRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	env, m := takttest.NewEnv(t), newManager(t)
	address := takttest.FreeAddress(t)
	p, err := env.Launch("takt", []string{"TAKT_DATA_DIR=" + t.TempDir(), "TAKT_LISTEN=" + address, "NOTIFY_SOCKET=" + m.path}, "serve")
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Stop(context.WithoutCancel(t.Context()), takttest.Patience)) }()
	require.Equal(t, "1", m.next(t)["READY"])
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
}

// With a socket of systemd's, restarts refuse nothing: what comes while takt stops waits in
// the socket for the next takt.
func TestRestartsWithASocketOfSystemdRefuseNothing(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	file, err := ln.(*net.TCPListener).File()
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	// As systemd does: it names the process that the socket is for.
	wrapper := filepath.Join(t.TempDir(), "takt")
	require.NoError(t, os.WriteFile(wrapper, []byte(fmt.Sprintf("#!/bin/sh\nLISTEN_PID=$$ LISTEN_FDS=1 exec %q \"$@\"\n", env.Takt)), 0o700))
	env.Takt, env.Files = wrapper, []*os.File{file}
	env.Settings = append(env.Settings, "TAKT_QUEUE_LIMIT=1000000")
	c := env.StartController("takt")
	require.Equal(t, ln.Addr().String(), c.Address)
	id := takttest.Submit(t, c, make([]byte, bigSource))

	ctx, stop := context.WithCancelCause(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop(nil)
	var answered, submitted atomic.Int64
	first := c
	for i := range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				if err := oneRequest(t.Context(), first, i%2 == 0); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				answered.Add(1)
				submitted.Add(int64((i + 1) % 2))
				<-time.After(25 * time.Millisecond)
			}
		})
	}
	more := func() {
		t.Helper()
		before := answered.Load()
		takttest.Eventually(t, "requests are answered", func() bool { return answered.Load() > before+40 })
	}
	more()
	for range 3 {
		download := beginDownload(t, c, id) // keeps the old process for a while
		require.NoError(t, c.Signal(syscall.SIGTERM))
		begun := time.Now()
		waiting := make(chan error, 1)
		go func() { waiting <- oneRequest(t.Context(), first, false) }()
		select {
		case <-c.Done():
			require.Fail(t, "it did not wait for the download")
		case <-time.After(time.Second):
		}
		requireWholeSource(t, download)
		<-c.Done()
		require.NoError(t, c.Failure())
		require.Less(t, time.Since(begun), 20*time.Second)
		c = env.StartController("takt")
		require.NoError(t, <-waiting)
		more()
	}
	stop(nil)
	load.Wait()
	builds, err := c.Client.List(t.Context(), client.Filter{})
	require.NoError(t, err)
	require.Len(t, builds, 1+int(submitted.Load()))
	t.Logf("%d requests", answered.Load())
}

// oneRequest sends one request on a connection of its own: it submits a build, or lists one.
func oneRequest(ctx context.Context, c *process.Controller, submits bool) error {
	transport := &http.Transport{DisableKeepAlives: true}
	own, err := client.New(client.Config{BaseURL: c.URL, APIKey: c.APIKey, HTTPClient: &http.Client{Transport: transport, Timeout: takttest.Patience}})
	if err != nil {
		return err
	}
	if submits {
		_, err = own.Submit(ctx, client.Submit{Platform: "ios", Source: client.Bytes([]byte("source"))})
	} else {
		_, err = own.List(ctx, client.Filter{Limit: 1})
	}
	return err
}
