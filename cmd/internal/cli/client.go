package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// DefaultURL is the address of a controller that was started without settings.
const DefaultURL = "http://127.0.0.1:3000"

// Remote is what every client command needs to reach a controller.
type Remote struct {
	Env        Environment
	URL        string
	APIKey     string
	APIKeyFile string
	CAFile     string
	JSON       bool
	UTC        bool
}

// AddFlags adds the flags of every client command.
func (r *Remote) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&r.URL, "url", "", "URL of the controller (TAKT_URL, default "+DefaultURL+")")
	fs.StringVar(&r.APIKeyFile, "api-key-file", "", "file that holds the API key")
	fs.StringVar(&r.APIKey, "api-key", "", "API key; visible in the process list, so prefer TAKT_API_KEY or --api-key-file")
	fs.StringVar(&r.CAFile, "ca-file", "", "PEM file of certificate authorities to trust for an https controller, instead of the system's (TAKT_CA_FILE)")
	fs.BoolVar(&r.UTC, "utc", false, "times in UTC instead of local time")
	fs.BoolVar(&r.JSON, "json", false, "results as JSON, one value per line")
}

// Session is one run of a client command.
type Session struct {
	Output
	Client *client.Client
	Tokens Tokens
	Retry  client.Retry
}

// Command makes do the body of cmd. It gives do a session and a context that ends
// with SIGINT or SIGTERM. A cmd without Args takes no arguments.
func Command(env Environment, cmd *cobra.Command, do func(ctx context.Context, s *Session, args []string) error) *cobra.Command {
	r := Remote{Env: env}
	r.AddFlags(cmd.Flags())
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	cmd.RunE = Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		s, err := r.Open(cmd)
		if err != nil {
			return err
		}
		defer s.Client.CloseIdle()
		return do(ctx, s, args)
	})
	return cmd
}

// Show shows a reply, unless the call failed.
func Show[T any](s *Session, reply T, err error, show func(io.Writer, T)) error {
	if err != nil {
		return err
	}
	return s.Result(reply, func(w io.Writer) { show(w, reply) })
}

// Open reads the settings from the flags, then from the environment.
func (r *Remote) Open(cmd *cobra.Command) (*Session, error) {
	if r.UTC {
		InUTC()
	}
	key, err := r.Key()
	if err != nil {
		return nil, AsUsage(err)
	}
	roots, err := r.Roots()
	if err != nil {
		return nil, AsUsage(err)
	}
	c, err := client.New(client.Config{
		BaseURL: cmp.Or(r.URL, r.Env.Get("TAKT_URL"), DefaultURL),
		APIKey:  key, AdminKey: r.Env.Get("TAKT_ADMIN_KEY"), RootCAs: roots, UserAgent: "takt/" + Version(),
	})
	if err != nil {
		return nil, AsUsage(err)
	}
	s := &Session{
		Output: Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: r.JSON},
		Client: c,
		Tokens: Tokens{Dir: filepath.Join(StateDir(r.Env), "tokens")},
	}
	said := ""
	s.Retry = client.Retry{Patience: 10 * time.Second, Backoff: backoff.Backoff{Max: 5 * time.Second}, Temporary: Heals, OnWait: func(err error, wait time.Duration) {
		text := store.Line(Message(err))
		s.Status(fmt.Sprintf("takt: trying again in %s: %s", wait.Round(100*time.Millisecond), text))
		if text != said && !Terminal(s.Err) { // a terminal shows each try in the same line
			s.Note("takt: trying again: %s", text)
		}
		said = text
	}}
	return s, nil
}

// Roots returns the authorities that a controller's certificate is checked against; nil
// means the system's.
func (r *Remote) Roots() (*x509.CertPool, error) {
	file := cmp.Or(r.CAFile, r.Env.Get("TAKT_CA_FILE"))
	if file == "" {
		return nil, nil // none is asked for, which is no error
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("CA file: %s holds no PEM certificate", file)
	}
	return pool, nil
}

// Key returns the API key, or "" if there is none. A build token may be enough without
// it.
func (r *Remote) Key() (string, error) {
	if r.APIKey != "" {
		return strings.Clone(r.APIKey), nil // a copy, because hide may wipe the argument
	}
	if r.APIKeyFile == "" {
		if key := r.Env.Get("TAKT_API_KEY"); key != "" {
			return key, nil
		}
	}
	return ReadSecret("API key", cmp.Or(r.APIKeyFile, r.Env.Get("TAKT_API_KEY_FILE")))
}

// Again repeats a call that is safe to repeat.
func Again[T any](ctx context.Context, s *Session, call func(context.Context) (T, error)) (T, error) {
	var out T
	err := s.Retry.Do(ctx, func(ctx context.Context) (err error) {
		out, err = call(ctx)
		return err
	})
	return out, err
}

// Environment looks up a variable as os.LookupEnv does.
type Environment func(name string) (value string, set bool)

// Get returns a variable, "" if it is not set.
func (e Environment) Get(name string) string {
	value, _ := e(name)
	return value
}

// StateDir returns the directory of a user's data, as the XDG specification says.
func StateDir(lookup func(string) (string, bool)) string {
	if v, ok := lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(v) {
		return filepath.Join(v, "takt")
	}
	home, _ := lookup("HOME")
	return filepath.Join(home, ".local", "state", "takt")
}

// WorkerID returns the id of the worker with that id, or of the only worker with that
// name.
func WorkerID(ctx context.Context, c *client.Client, name string) (string, error) {
	list, err := c.Workers(ctx, client.WorkerFilter{})
	if err != nil {
		return "", err
	}
	var named []string
	for _, w := range list.Workers {
		if w.ID == name {
			return name, nil
		}
		if w.Name == name {
			named = append(named, w.ID)
		}
	}
	switch len(named) {
	case 0:
		return "", store.NewError(store.NotFound, fmt.Sprintf("There is no worker %q; takt workers lists them", name))
	case 1:
		return named[0], nil
	default:
		return "", Usage("%d workers are called %q: %s", len(named), name, strings.Join(named, ", "))
	}
}

// Elapsed returns how long ago a time is that is given as text.
func Elapsed(iso string) (time.Duration, bool) {
	at, err := time.Parse(time.RFC3339, iso)
	return max(time.Since(at), 0), err == nil
}
