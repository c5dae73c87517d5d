package edge

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// certificateCheck is how often handshakes check whether the files of a certificate have
// changed.
const certificateCheck = time.Second

// Certificate is a TLS key pair in two PEM files. After the files have changed, the next
// handshake reads them again, at most once a second. If they are no valid pair, that is logged
// and the old pair stays in use. Safe for concurrent use.
type Certificate struct {
	certFile, keyFile string
	log               zerolog.Logger
	current           atomic.Pointer[tls.Certificate]

	mu     sync.Mutex // guards what follows
	looked time.Time  // when the files were last checked
	cert   []byte     // the content of the pair in use
	key    []byte
	failed string // the error of the last check; "" if there was none
}

// OpenCertificate reads the pair. It warns if other users can read the key's file.
func OpenCertificate(certFile, keyFile string, log zerolog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.read(time.Now()); err != nil {
		return nil, err
	}
	return c, nil
}

// NotAfter returns when the certificate in use expires.
func (c *Certificate) NotAfter() time.Time { return c.current.Load().Leaf.NotAfter }

// config returns the configuration of a listener; net/http adds HTTP/2.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.refresh(time.Now())
			return c.current.Load(), nil
		},
	}
}

// refresh reads the files again, unless that was done less than certificateCheck ago or is
// being done.
func (c *Certificate) refresh(now time.Time) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if now.Sub(c.looked) < certificateCheck {
		return
	}
	c.looked = now
	err := c.read(now)
	if err == nil {
		c.failed = ""
		return
	}
	if text := err.Error(); text != c.failed { // each error is logged once, not at every check
		c.failed = text
		c.log.Error().Err(err).Msg("invalid TLS certificate; keeping the current one")
	}
}

// read loads the pair, unless its files are unchanged.
func (c *Certificate) read(now time.Time) error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("TLS key: %w", err)
	}
	if c.failed == "" && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("TLS certificate %s and key %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.key = cert, key
	c.current.Store(&pair)
	if info, err := os.Stat(c.keyFile); err == nil && info.Mode().Perm()&0o077 != 0 {
		c.log.Warn().Str("file", c.keyFile).Stringer("mode", info.Mode().Perm()).
			Msg("the TLS key can be read by others: chmod 600")
	}
	level := zerolog.InfoLevel
	if now.After(pair.Leaf.NotAfter) {
		level = zerolog.WarnLevel
	}
	c.log.WithLevel(level).Str("file", c.certFile).Time("not_after", pair.Leaf.NotAfter).
		Strs("names", pair.Leaf.DNSNames).Msg("TLS certificate in use")
	return nil
}
