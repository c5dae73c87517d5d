package main

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

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// defaultURL is the address of a controller that was started without settings.
const defaultURL = "http://127.0.0.1:3000"

// remote is what every client command needs to reach a controller.
type remote struct {
	env        environment
	url        string
	apiKey     string
	apiKeyFile string
	caFile     string
	json       bool
	utc        bool
}

func (r *remote) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&r.url, "url", "", "URL of the controller (TAKT_URL, default "+defaultURL+")")
	fs.StringVar(&r.apiKeyFile, "api-key-file", "", "file that holds the API key")
	fs.StringVar(&r.apiKey, "api-key", "", "API key; visible in the process list, so prefer TAKT_API_KEY or --api-key-file")
	fs.StringVar(&r.caFile, "ca-file", "", "PEM file of certificate authorities to trust for an https controller, instead of the system's (TAKT_CA_FILE)")
	fs.BoolVar(&r.utc, "utc", false, "times in UTC instead of local time")
	fs.BoolVar(&r.json, "json", false, "results as JSON, one value per line")
}

// session is one run of a client command.
type session struct {
	cli.Output
	client *client.Client
	tokens cli.Tokens
	retry  client.Retry
}

// clientCommand makes do the body of cmd. It gives do a session and a context that ends
// with SIGINT or SIGTERM. A cmd without Args takes no arguments.
func clientCommand(env environment, cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	r := remote{env: env}
	r.addFlags(cmd.Flags())
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	cmd.RunE = cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		s, err := r.open(cmd)
		if err != nil {
			return err
		}
		defer s.client.CloseIdle()
		return do(ctx, s, args)
	})
	return cmd
}

// ask makes cmd a command that makes one call and shows the reply. The call must be safe
// to repeat.
func ask[T any](env environment, cmd *cobra.Command, call callFunc[T], show func(io.Writer, T)) *cobra.Command {
	return clientCommand(env, cmd, func(ctx context.Context, s *session, args []string) error {
		reply, err := again(ctx, s, func(ctx context.Context) (T, error) { return call(ctx, s.client, args) })
		return showReply(s, reply, err, show)
	})
}

// order is like ask, but makes its call only once, because a repeat would have an effect
// twice or fail.
func order[T any](env environment, cmd *cobra.Command, call callFunc[T], show func(io.Writer, T)) *cobra.Command {
	return clientCommand(env, cmd, func(ctx context.Context, s *session, args []string) error {
		reply, err := call(ctx, s.client, args)
		return showReply(s, reply, err, show)
	})
}

type callFunc[T any] func(ctx context.Context, c *client.Client, args []string) (T, error)

// calls returns the call of an endpoint with the input that in makes of the arguments.
func calls[In, Out any](e api.Endpoint[In, Out], in func(args []string) (In, error)) callFunc[Out] {
	return func(ctx context.Context, c *client.Client, args []string) (out Out, err error) {
		input, err := in(args)
		if err != nil {
			return out, err
		}
		return client.Call(ctx, c, e, input)
	}
}

func showReply[T any](s *session, reply T, err error, show func(io.Writer, T)) error {
	if err != nil {
		return err
	}
	return s.Result(reply, func(w io.Writer) { show(w, reply) })
}

// open reads the settings from the flags, then from the environment.
func (r *remote) open(cmd *cobra.Command) (*session, error) {
	if r.utc {
		cli.InUTC()
	}
	key, err := r.key()
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	roots, err := r.roots()
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	c, err := client.New(client.Config{
		BaseURL: cmp.Or(r.url, r.env.get("TAKT_URL"), defaultURL),
		APIKey:  key, AdminKey: r.env.get("TAKT_ADMIN_KEY"), RootCAs: roots, UserAgent: "takt/" + version(),
	})
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	s := &session{
		Output: cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: r.json},
		client: c,
		tokens: cli.Tokens{Dir: filepath.Join(stateDir(r.env), "tokens")},
	}
	said := ""
	s.retry = client.Retry{Patience: 10 * time.Second, Backoff: backoff.Backoff{Max: 5 * time.Second}, Temporary: cli.Heals, OnWait: func(err error, wait time.Duration) {
		text := store.Line(cli.Message(err))
		s.Status(fmt.Sprintf("takt: trying again in %s: %s", wait.Round(100*time.Millisecond), text))
		if text != said && !cli.Terminal(s.Err) { // a terminal shows each try in the same line
			s.Note("takt: trying again: %s", text)
		}
		said = text
	}}
	return s, nil
}

// roots returns the authorities that a controller's certificate is checked against; nil
// means the system's.
func (r *remote) roots() (*x509.CertPool, error) {
	file := cmp.Or(r.caFile, r.env.get("TAKT_CA_FILE"))
	if file == "" {
		return nil, nil //nolint:nilnil // none is asked for, which is no error
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

// key returns the API key, or "" if there is none. A build token may be enough without
// it.
func (r *remote) key() (string, error) {
	if r.apiKey != "" {
		return strings.Clone(r.apiKey), nil // a copy, because hide may wipe the argument
	}
	if r.apiKeyFile == "" {
		if key := r.env.get("TAKT_API_KEY"); key != "" {
			return key, nil
		}
	}
	return readSecret("API key", cmp.Or(r.apiKeyFile, r.env.get("TAKT_API_KEY_FILE")))
}

// readSecret reads a secret from its file. It returns "" if no file is named.
func readSecret(what, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	secret := strings.TrimSpace(string(raw))
	if secret == "" {
		return "", fmt.Errorf("%s: %s is empty", what, file)
	}
	return secret, nil
}

// again repeats a call that is safe to repeat.
func again[T any](ctx context.Context, s *session, call func(context.Context) (T, error)) (T, error) {
	var out T
	err := s.retry.Do(ctx, func(ctx context.Context) (err error) {
		out, err = call(ctx)
		return err
	})
	return out, err
}
