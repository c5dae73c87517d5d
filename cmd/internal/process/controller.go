package process

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"takt/http/client"
)

// Controller is a `takt serve` that answers.
type Controller struct {
	*Process
	DataDir string
	// Address is host:port, URL the same with http:// before it, or https:// if
	// the settings name a certificate. TAKT_CA_FILE says whom to trust then.
	Address, URL     string
	APIKey, AdminKey string
	// Client speaks to it with both keys.
	Client *client.Client

	scheme, caFile string
}

// Environ is base without any setting of takt, its database or its test
// set-up, plus the given ones: the user's own set-up must not leak in.
func Environ(base []string, settings ...string) []string {
	foreign := []string{"TAKT_", "CONTROLLER_API_KEY=", "DATABASE_URL=", "ENCRYPTION_KEY=", "PORT=", "BASE_IMAGE_ID=", "HUBSPOT_", "PG"}
	var env []string
next:
	for _, kv := range base {
		for _, prefix := range foreign {
			if strings.HasPrefix(kv, prefix) && !strings.HasPrefix(kv, reexec) {
				continue next
			}
		}
		env = append(env, kv)
	}
	return append(env, settings...)
}

// reexec is the variable that makes a test binary behave as takt itself.
const reexec = "TAKT_TEST_REEXEC="

// StartController runs `takt serve` in dir with its data under dir/name, on a
// free port unless settings say otherwise, and returns when it is healthy. It
// gives up after limit, or at once when the process ends.
func StartController(ctx context.Context, dir, name string, environ []string, limit time.Duration) (*Controller, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the takt binary: %w", err)
	}
	return StartControllerOf(ctx, self, dir, name, environ, limit)
}

// StartControllerOf is StartController with another takt.
func StartControllerOf(ctx context.Context, binary, dir, name string, environ []string, limit time.Duration) (*Controller, error) {
	c := &Controller{DataDir: filepath.Join(dir, name), scheme: "http://"}
	for _, kv := range environ {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "TAKT_API_KEY":
			c.APIKey = v
		case "TAKT_ADMIN_KEY":
			c.AdminKey = v
		case "TAKT_TLS_CERT":
			c.scheme = "https://"
		case "TAKT_CA_FILE":
			c.caFile = v
		}
	}
	// A stale address, of a run that was killed, must not be taken for this one's.
	if err := os.Remove(filepath.Join(c.DataDir, "address")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing a stale address: %w", err)
	}
	env := append([]string{"TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=info,json"}, environ...)
	p, err := launch(binary, dir, name, append(env, "TAKT_DATA_DIR="+c.DataDir), "serve")
	if err != nil {
		return nil, err
	}
	c.Process = p
	if err := c.awaitHealth(ctx, limit); err != nil {
		if p.Alive() {
			_ = p.Stop(context.WithoutCancel(ctx), limit) // the first error is the one to show
		}
		return nil, err
	}
	return c, nil
}

func (c *Controller) awaitHealth(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s is not healthy after %s", c.Name, limit))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := c.connect(); err != nil {
			return err
		}
		if c.Client != nil {
			if _, err := c.Client.Health(ctx); err == nil {
				return nil
			}
		}
		select {
		case <-c.Done():
			return fmt.Errorf("%s ended while starting: %w", c.Name, errors.Join(c.Failure(), errors.New(c.Tail())))
		case <-ctx.Done():
			return fmt.Errorf("%w%s", context.Cause(ctx), c.Tail())
		case <-tick.C:
		}
	}
}

// connect makes the client as soon as the controller has written its address.
func (c *Controller) connect() error {
	if c.Client != nil {
		return nil
	}
	c.Address = c.read("address")
	if c.APIKey == "" {
		c.APIKey = c.read("api-key")
	}
	if c.AdminKey == "" {
		c.AdminKey = c.read("admin-key")
	}
	if c.Address == "" || c.APIKey == "" || c.AdminKey == "" {
		return nil
	}
	c.URL = c.scheme + c.Address
	var roots *x509.CertPool
	if c.caFile != "" {
		raw, err := os.ReadFile(c.caFile)
		if err != nil {
			return fmt.Errorf("CA file: %w", err)
		}
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(raw)
	}
	var err error
	c.Client, err = client.New(client.Config{BaseURL: c.URL, APIKey: c.APIKey, AdminKey: c.AdminKey, RootCAs: roots})
	return err
}

// read returns the content of a small file of the data directory, "" if it is
// not there yet.
func (c *Controller) read(name string) string { return ReadWord(filepath.Join(c.DataDir, name)) }

// ReadWord returns a file's content without surrounding space, "" if it cannot
// be read.
func ReadWord(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// Metric returns the value of a metric without labels, 0 if there is none.
func (c *Controller) Metric(ctx context.Context, name string) (float64, error) {
	text, err := c.Client.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}
