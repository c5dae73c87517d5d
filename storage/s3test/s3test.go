// Package s3test gives tests an S3 server of their own: versitygw, a real one,
// on a free port of the loopback interface, in a directory of the test.
//
// # State
//
// A Server holds its process. It stores objects as plain files below Dir, so a test can
// read an object, damage it or change its time without an S3 request.
//
// # Failure
//
// A server that does not answer fails the test. Package needs says what a missing program does.
//
// # Concurrency
//
// A Server belongs to one test.
package s3test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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

// The settings of every server here.
const (
	Bucket    = "takt-test"
	AccessKey = "takt-test-access"
	SecretKey = "takt-test-secret-3f9c1d"
)

// Server is a running S3 server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// Dir holds the bucket's objects, as files named like their keys.
	Dir string

	tb      testing.TB
	program string
	root    string
	port    int
	cmd     *exec.Cmd
	done    chan struct{}
}

// Start starts a server with an empty bucket. It ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, program: needs.S3(tb), root: tb.TempDir()}
	s.Dir = filepath.Join(s.root, "data", Bucket)
	require.NoError(tb, os.MkdirAll(s.Dir, 0o700))
	require.NoError(tb, os.MkdirAll(filepath.Join(s.root, "meta"), 0o700))
	tb.Cleanup(s.Kill)
	for range 20 {
		s.port = freePort(tb)
		if s.launch() {
			s.Endpoint = fmt.Sprintf("http://127.0.0.1:%d", s.port)
			return s
		}
	}
	tb.Fatalf("the S3 server does not start: %s", s.log())
	return nil
}

// freePort returns an unused port below the range that the system assigns by itself, so
// that a server that was stopped finds it free again.
func freePort(tb testing.TB) int {
	tb.Helper()
	for {
		port := 15000 + rand.N(17000)
		ln, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		require.NoError(tb, ln.Close())
		return port
	}
}

// launch starts the process and reports whether it answers.
func (s *Server) launch() bool {
	s.tb.Helper()
	log, err := os.OpenFile(filepath.Join(s.root, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(s.tb, err)
	defer log.Close()
	s.cmd = exec.Command(s.program, "--port", fmt.Sprintf("127.0.0.1:%d", s.port), "--access", AccessKey, "--secret", SecretKey, // it outlives calls
		"--quiet", "--keep-alive", "posix", "--sidecar", filepath.Join(s.root, "meta"), filepath.Join(s.root, "data"))
	s.cmd.Env = []string{"HOME=" + s.root, "TMPDIR=" + s.root}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	wait, err := tied.Start(s.cmd)
	require.NoError(s.tb, err)
	done := make(chan struct{})
	s.done = done
	go func() {
		_ = wait() // only the end of the process matters
		close(done)
	}()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(s.tb.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
		if err == nil {
			require.NoError(s.tb, conn.Close())
			select {
			case <-done:
				return false // another process answered
			default:
				return true
			}
		}
		select {
		case <-done:
			return false
		case <-deadline:
			s.Kill()
			return false
		case <-tick.C:
		}
	}
}

func (s *Server) log() string {
	raw, _ := os.ReadFile(filepath.Join(s.root, "log"))
	return string(raw)
}

// Kill ends the server at once, like a power cut. It does nothing after the end.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended already
	<-s.done
	s.cmd = nil
}

// Restart starts the server again, on the same port with the same objects.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	require.True(s.tb, s.launch(), "the S3 server does not start again: %s", s.log())
}

// Freeze stops the server's process, and returns when all its threads have stopped:
// connections stay open, but get no answer. Thaw ends that.
func (s *Server) Freeze() {
	s.tb.Helper()
	s.signal(syscall.SIGSTOP)
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if !errors.Is(err, syscall.EINTR) {
			require.NoError(s.tb, err)
			require.True(s.tb, status.Stopped(), "the S3 server has ended: %s", s.log())
			return
		}
	}
}

// Thaw ends Freeze.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(s.tb, err)
	}
}

// Objects lists the keys in the bucket, without the parts of unfinished uploads.
func (s *Server) Objects() []string {
	s.tb.Helper()
	keys := []string{}
	err := filepath.WalkDir(s.Dir, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() && d.Name() == ".sgwtmp" {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			key, _ := filepath.Rel(s.Dir, path)
			keys = append(keys, filepath.ToSlash(key))
		}
		return err
	})
	require.NoError(s.tb, err)
	return keys
}

// Env returns takt's settings for this server.
func (s *Server) Env() []string {
	return []string{
		"TAKT_S3_ENDPOINT=" + s.Endpoint, "TAKT_S3_BUCKET=" + Bucket,
		"TAKT_S3_ACCESS_KEY=" + AccessKey, "TAKT_S3_SECRET_KEY=" + SecretKey,
	}
}
