package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/http/client"
	"takt/store/backoff"
)

// defaultURL is where a controller listens that was started without settings.
const defaultURL = "http://127.0.0.1:3000"

// remote is what every client command needs to reach a controller.
type remote struct {
	env        environment
	url        string
	apiKey     string
	apiKeyFile string
	caFile     string
	json       bool
}

func (r *remote) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&r.url, "url", "", "controller (TAKT_URL, default "+defaultURL+")")
	fs.StringVar(&r.apiKeyFile, "api-key-file", "", "file that holds the API key")
	fs.StringVar(&r.apiKey, "api-key", "", "API key; others can see it in the process list: better TAKT_API_KEY or --api-key-file")
	fs.StringVar(&r.caFile, "ca-file", "", "PEM file of the authorities to trust about an https controller, instead of the system's (TAKT_CA_FILE)")
	fs.BoolVar(&r.json, "json", false, "results as JSON, one value per line")
}

// session is one run of a client command.
type session struct {
	cli.Output
	client *client.Client
	tokens cli.Tokens
	retry  client.Retry
}

// command makes do the body of cmd, with a session and a context that ends with
// SIGINT or SIGTERM.
func (r *remote) command(cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	r.addFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		s, err := r.open(cmd)
		if err != nil {
			return err
		}
		defer s.client.CloseIdle()
		return do(ctx, s, args)
	}
	return cmd
}

// open reads the settings: flags, then the environment.
func (r *remote) open(cmd *cobra.Command) (*session, error) {
	key, err := r.key()
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	admin := r.env.get("TAKT_ADMIN_KEY")
	roots, err := r.roots()
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	c, err := client.New(client.Config{
		BaseURL: firstSet(r.url, r.env.get("TAKT_URL"), defaultURL),
		APIKey:  key, AdminKey: admin, RootCAs: roots, UserAgent: "takt/" + version(),
	})
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	s := &session{
		Output: cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: r.json},
		client: c,
		tokens: cli.Tokens{Dir: filepath.Join(stateDir(r.env), "tokens")},
	}
	s.retry = client.Retry{Patience: 10 * time.Second, Backoff: backoff.Backoff{Max: 5 * time.Second}, OnWait: func(err error, wait time.Duration) {
		s.Note("takt: %s; again in %s", cli.Plain(cli.Message(err)), wait.Round(100*time.Millisecond))
	}}
	return s, nil
}

// roots are whom to trust about the controller; nil means whom the system
// trusts.
func (r *remote) roots() (*x509.CertPool, error) {
	file := firstSet(r.caFile, r.env.get("TAKT_CA_FILE"))
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

// key finds the API key; "" if there is none, which a build token may make up
// for.
func (r *remote) key() (string, error) {
	if r.apiKey != "" {
		return r.apiKey, nil
	}
	file := firstSet(r.apiKeyFile, r.env.get("TAKT_API_KEY_FILE"))
	if env := r.env.get("TAKT_API_KEY"); env != "" && r.apiKeyFile == "" {
		return env, nil
	}
	if file == "" {
		return "", nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("API key: %w", err)
	}
	key := strings.TrimSpace(string(raw))
	if key == "" {
		return "", fmt.Errorf("API key: %s is empty", file)
	}
	return key, nil
}

// auth is what is known of a build's token.
func (s *session) auth(buildID string) (client.BuildAuth, error) {
	token, err := s.tokens.Find(s.client.BaseURL(), buildID)
	return client.BuildAuth{Token: token}, err
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

func (e environment) get(name string) string {
	value, _ := e(name)
	return value
}

func firstSet(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
