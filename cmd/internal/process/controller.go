package process

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"takt/http/api"
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

// learn takes from the settings what its clients have to know.
func (c *Controller) learn(settings []string) {
	c.scheme = "http://"
	for _, kv := range settings {
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
}

// starting is its progress until it answers. From its address on it is asked for its health,
// which costs its database time: so that counts no more.
func (c *Controller) starting() string {
	if c.Address == "" {
		return c.Progress()
	}
	return "address " + c.Address
}

// healthy reports whether it answers.
func (c *Controller) healthy(ctx context.Context) (bool, error) {
	if err := c.connect(); err != nil || c.Client == nil {
		return false, err
	}
	_, err := client.Call(ctx, c.Client, api.ShowHealth, api.None{})
	return err == nil, nil
}

// connect makes the client as soon as the controller has written its address.
func (c *Controller) connect() error {
	if c.Client != nil {
		return nil
	}
	c.Address = c.read("address")
	c.APIKey = cmp.Or(c.APIKey, c.read("api-key"))
	c.AdminKey = cmp.Or(c.AdminKey, c.read("admin-key"))
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

// DatabaseURL reaches its embedded PostgreSQL.
func (c *Controller) DatabaseURL() string {
	return fmt.Sprintf("host=%s port=5432 user=takt password=%s dbname=takt sslmode=disable", filepath.Join(c.DataDir, "postgres"), c.read("postgres.password"))
}

// Shared are the settings of another controller on its database.
func (c *Controller) Shared() []string {
	return []string{
		"TAKT_DATABASE_URL=" + c.DatabaseURL(), "TAKT_API_KEY=" + c.APIKey, "TAKT_ADMIN_KEY=" + c.AdminKey,
		"TAKT_ENCRYPTION_KEY=" + c.read("encryption-key"),
	}
}

// Postmaster is the process id of its embedded PostgreSQL.
func (c *Controller) Postmaster() (int, error) {
	first, _, _ := strings.Cut(c.read(filepath.Join("postgres", "postmaster.pid")), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("finding the PostgreSQL of %s: %q is no process id", c.Name, first)
	}
	return pid, nil
}

// ReadWord returns a file's content without surrounding space, "" if it cannot
// be read.
func ReadWord(path string) string {
	raw, _ := os.ReadFile(path)
	return strings.TrimSpace(string(raw))
}

// Metric returns the sum of a metric over its labels, 0 if there is none.
func (c *Controller) Metric(ctx context.Context, name string) (float64, error) {
	text, err := c.Client.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if found, _, _ := strings.Cut(series, "{"); found != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", series, err)
		}
		sum += n
	}
	return sum, nil
}
