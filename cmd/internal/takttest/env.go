package takttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/await"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	takthttp "takt/http"
	"takt/http/api"
	"takt/http/client"
	"takt/http/openapitest"
	"takt/store/storetest/needs"
)

// How long a test waits for what takes moments, and how often it looks.
const (
	Patience = time.Minute
	Tick     = 50 * time.Millisecond // a look is a request or more
)

// Disk is a directory for what is too large for memory.
var Disk = os.TempDir() // before Main sets another one

// dirs has the directory of each test's latest Env, by the name of the test.
var dirs sync.Map

// document is the OpenAPI document, read once.
var document = sync.OnceValues(func() (*openapitest.Checker, error) {
	return openapitest.Load(context.Background(), takthttp.OpenAPI())
})

// Env is a directory with the controllers and workers of one test, which are its own binary.
type Env struct {
	process.Site
	T          *testing.T
	OwnCluster bool            // controllers make their clusters themselves
	logged     map[string]bool // whose last words the failed test has logged
}

// NewEnv makes a test's directory.
func NewEnv(t *testing.T) *Env {
	t.Helper()
	needs.Postgres(t)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := ShortDir(t)
	test, _, _ := strings.Cut(t.Name(), "/")
	dirs.Store(test, dir)
	return &Env{
		Site: process.Site{Takt: self, Dir: dir, Environ: os.Environ(), Settings: []string{Reexec + "=1"}},
		T:    t, logged: map[string]bool{},
	}
}

// StartController starts `takt serve`; it is stopped at the end of the test, and has
// to stop cleanly: a data race that the detector found makes it exit non-zero.
func (env *Env) StartController(name string, settings ...string) *process.Controller {
	env.T.Helper()
	if !env.OwnCluster && !strings.Contains(strings.Join(settings, "\n"), "TAKT_DATABASE_URL=") {
		copyCluster(env.T, filepath.Join(env.Dir, name))
	}
	c, err := env.Controller(env.T.Context(), name, settings...)
	require.NoError(env.T, err)
	if strings.HasPrefix(c.URL, "http://") { // with TLS the client knows its own certificates
		c.Client = checkedClient(env.T, c)
	}
	env.stopAtEnd(name, c.Process)
	return c
}

// StartWorker starts `takt worker` with a build command; it is stopped at the end of the test.
func (env *Env) StartWorker(c *process.Controller, name, command string, settings ...string) *process.Process {
	env.T.Helper()
	p, err := env.Worker(c, name, command, settings, "--heartbeat", "500ms")
	require.NoError(env.T, err)
	env.stopAtEnd(name, p)
	return p
}

func (env *Env) stopAtEnd(name string, p *process.Process) {
	env.T.Cleanup(func() {
		if p.Alive() {
			require.NoError(env.T, p.Stop(context.WithoutCancel(env.T.Context()), Patience))
		}
		env.LogOnFailure(name, p)
	})
}

// LogOnFailure logs the end of a failed test's log, once for all that ran as name.
func (env *Env) LogOnFailure(name string, p *process.Process) {
	env.T.Helper()
	if env.T.Failed() && !env.logged[name] {
		env.logged[name] = true
		env.T.Logf("%s said:%s", name, p.Tail())
	}
}

// Run runs a command as a process to its end, and returns its exit status and output.
func (env *Env) Run(settings []string, args ...string) (code int, output string) {
	env.T.Helper()
	p, err := env.Launch("command", settings, args...)
	require.NoError(env.T, err)
	<-p.Done()
	env.T.Logf("%s: exit status %d%s", strings.Join(args, " "), p.ExitCode(), p.Tail())
	return p.ExitCode(), p.Output()
}

// MustRun runs a command that has to succeed, and returns its output.
func (env *Env) MustRun(settings []string, args ...string) string {
	env.T.Helper()
	code, output := env.Run(settings, args...)
	require.Zero(env.T, code, output)
	return output
}

// MustFail runs a command that has to fail, and say why.
func (env *Env) MustFail(why string, settings []string, args ...string) {
	env.T.Helper()
	code, output := env.Run(settings, args...)
	require.Equal(env.T, 1, code)
	require.Contains(env.T, output, why)
}

// Client runs a client command that has to succeed, with both keys of c, and returns what it
// prints.
func (env *Env) Client(c *process.Controller, args ...string) string {
	env.T.Helper()
	said, err := env.TryClient(c, args...)
	require.NoError(env.T, err, said)
	return said
}

// TryClient is Client for a command that may fail.
func (env *Env) TryClient(c *process.Controller, args ...string) (string, error) {
	root := command.New(Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey))
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(env.T.Context())
	return strings.TrimSpace(out.String()), err
}

// Environment is one with these names and values, and a home.
func Environment(pairs ...string) cli.Environment {
	m := map[string]string{"HOME": "/home/somebody"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

// checkedClient returns a client of c that holds each reply against the OpenAPI document.
func checkedClient(t *testing.T, c *process.Controller) *client.Client {
	t.Helper()
	known, err := document()
	require.NoError(t, err)
	checking, err := client.New(client.Config{
		BaseURL: c.URL, APIKey: c.APIKey, AdminKey: c.AdminKey,
		HTTPClient: &http.Client{Transport: known.Transport(t, client.NewTransport())},
	})
	require.NoError(t, err)
	return checking
}

// Eventually waits for a condition, as long as the processes of the test write into their logs.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	require.NoError(t, await.Until(context.WithoutCancel(t.Context()), what, func() string {
		dir, _ := dirs.Load(test)
		logs, _ := filepath.Glob(fmt.Sprint(dir, "/*.log")) // none without an Env
		written := int64(0)
		for _, log := range logs {
			if info, err := os.Stat(log); err == nil {
				written += info.Size()
			}
		}
		return fmt.Sprintf("%d bytes of logs", written)
	}, func(context.Context) (bool, error) { return cond(), nil }))
}

// Pause waits for d, or for the end of ctx.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// ShortDir is t.TempDir for directories with sockets, whose paths must be short.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "env-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// FreeAddress is a loopback address that nothing listens on.
func FreeAddress(t *testing.T) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	return ln.Addr().String()
}

// FreePort is the port of a FreeAddress.
func FreePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(FreeAddress(t))
	require.NoError(t, err)
	return port
}

// NewKey makes an encryption key.
func NewKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// Call asks an endpoint of c, with both keys, and fails the test if c refuses.
func Call[In, Out any](t *testing.T, c *process.Controller, e api.Endpoint[In, Out], in In) Out {
	t.Helper()
	out, err := client.Call(t.Context(), c.Client, e, in)
	require.NoError(t, err)
	return out
}
