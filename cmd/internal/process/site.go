package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"takt/store/storetest/tied"
)

// ErrBroken is what a program returns that has checked takt's promises, and reported which
// were broken.
var ErrBroken = errors.New("takt did not keep every promise")

// Site is where takt's processes run: what they share.
type Site struct {
	// Takt is the program to run, see [Find].
	Takt string
	// Dir gets the logs, and a directory of its own for each controller and
	// worker.
	Dir string
	// Environ is the environment that they inherit, without its settings of takt.
	Environ []string
	// Settings are given to all of them, as NAME=value.
	Settings []string
	// Files are inherited, as descriptors 3 and up.
	Files []*os.File
}

// Find returns the takt to run: path, or, if that is empty, the program named
// takt beside this one.
func Find(path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("finding this program: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "takt")
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = exec.LookPath(path)
	}
	if err != nil {
		return "", fmt.Errorf("takt itself is needed (make build puts it beside this program; --takt or TAKT_BINARY name another): %w", err)
	}
	return path, nil
}

// Flag lets the user name the takt to run; otherwise it is the one that TAKT_BINARY
// holds.
func Flag(fs *pflag.FlagSet, path *string, otherwise string) {
	fs.StringVar(path, "takt", otherwise, "the takt to start; default: the one beside this program (TAKT_BINARY)")
}

// In runs f with a site in a new directory, for a program called name, and removes the
// directory; after a failure it keeps it and says on out where the logs are. takt is as for
// [Find].
func In(name, takt string, out io.Writer, f func(Site) error) error {
	takt, err := Find(takt)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return fmt.Errorf("making a directory for %s: %w", name, err)
	}
	if err := f(Site{Takt: takt, Dir: dir, Environ: os.Environ()}); err != nil {
		fmt.Fprintf(out, "the logs of all processes are in %s\n", dir)
		return err
	}
	return os.RemoveAll(dir)
}

// Environment is what a process with these settings gets.
func (s Site) Environment(settings ...string) []string {
	return slices.Concat(foreignOut(s.Environ), s.Settings, settings)
}

// foreignOut is base without any setting of takt, its database or its test
// set-up: the user's own set-up must not leak in.
func foreignOut(base []string) []string {
	foreign := []string{"TAKT_", "CONTROLLER_API_KEY=", "DATABASE_URL=", "ENCRYPTION_KEY=", "PORT=", "BASE_IMAGE_ID=", "HUBSPOT_", "PG"}
	return slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		return slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
	})
}

// Launch runs takt with these settings and arguments, its output going to
// name.log.
func (s Site) Launch(name string, settings []string, args ...string) (*Process, error) {
	out, err := os.Create(filepath.Join(s.Dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", name, err)
	}
	defer out.Close()
	// Not bound to a context: children are ended in order, each by a signal that
	// lets it clean up.
	cmd := exec.Command(s.Takt, args...)
	cmd.Env = s.Environment(settings...)
	cmd.Dir = s.Dir
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, s.Files
	// A Ctrl-C at the terminal goes to the parent, which ends its children itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	wait, err := tied.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{Name: name, log: out.Name(), cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = wait()
		close(p.done)
	}()
	return p, nil
}

// Controller runs `takt serve` with its data under Dir/name, on a free port
// unless settings say otherwise, and returns when it is healthy. It gives up when nothing
// moves, or at once when the process ends.
func (s Site) Controller(ctx context.Context, name string, settings ...string) (*Controller, error) {
	c := &Controller{DataDir: filepath.Join(s.Dir, name)}
	// The last of a name wins.
	s.Settings = append([]string{"TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=info,json"}, s.Settings...)
	c.learn(slices.Concat(s.Settings, settings))
	// A stale address, of a run that was killed, must not be taken for this one's.
	if err := os.Remove(filepath.Join(c.DataDir, "address")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing a stale address: %w", err)
	}
	p, err := s.Launch(name, append(slices.Clone(settings), "TAKT_DATA_DIR="+c.DataDir), "serve")
	if err != nil {
		return nil, err
	}
	c.Process = p
	if err := c.Await(ctx, name+" to be healthy", c.starting, c.healthy); err != nil {
		if p.Alive() {
			_ = p.Stop(context.WithoutCancel(ctx), time.Minute) // the first error is the one to show
		}
		return nil, err
	}
	return c, nil
}

// Worker runs `takt worker` for c, which runs command for each build. Its state
// is under Dir/name-state.
func (s Site) Worker(c *Controller, name, command string, settings []string, args ...string) (*Process, error) {
	return s.Launch(name, append([]string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey}, settings...),
		append([]string{"worker", "--name", name, "--state-dir", s.WorkerState(name), "--exec", command}, args...)...)
}

// WorkerState is the state directory of the worker called name.
func (s Site) WorkerState(name string) string { return filepath.Join(s.Dir, name+"-state") }

// Serve serves h on a free loopback port of this process, for what takt's processes
// talk to or are compared with. stop cuts its connections and waits for its end.
func Serve(ctx context.Context, h http.Handler) (address string, stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(ln) // ends with Close
	}()
	return ln.Addr().String(), func() {
		_ = server.Close() // nobody is to be answered any more
		<-ended
	}, nil
}
