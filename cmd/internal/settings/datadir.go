package settings

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rs/zerolog"

	"takt/cmd/internal/cli"
	"takt/http/edge"
	"takt/store/seal"
)

// DirFault is a way in which others could read or replace takt's keys.
type DirFault struct {
	Path, Found, Mend string
	fatal             bool // takt does not start
}

// DataDirFaults looks at the modes and the owner of a data directory and of its keys.
func DataDirFaults(dir string) (faults []DirFault, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o002 != 0:
		faults = append(faults, DirFault{dir, fmt.Sprintf("everybody may write to it (%s), and so replace takt's keys", mode), "chmod 700", true})
	case mode&0o020 != 0:
		faults = append(faults, DirFault{dir, fmt.Sprintf("its group may write to it (%s), and so replace takt's keys", mode), "chmod 700", false})
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		faults = append(faults, DirFault{
			dir, fmt.Sprintf("it belongs to another user (%d), who can read and replace takt's keys", st.Uid), fmt.Sprintf("chown it to %d", os.Geteuid()), false,
		})
	}
	for _, name := range []string{"api-key", "admin-key", "encryption-key", "postgres.password"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			faults = append(faults, DirFault{path, fmt.Sprintf("this key can be read by others (%s)", info.Mode().Perm()), "chmod 600", false})
		}
	}
	return faults, nil
}

// OpenDataDir creates the data directory. It refuses a directory that everybody can write
// to, and logs other faults.
func OpenDataDir(dir string, log zerolog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	faults, err := DataDirFaults(dir)
	for _, f := range faults {
		if f.fatal {
			return fmt.Errorf("data directory %s: %s: %s", f.Path, f.Found, f.Mend)
		}
		log.Warn().Str("path", f.Path).Msg(f.Found + ": " + f.Mend)
	}
	return err
}

// FillKeys sets every key that the settings leave empty to the value kept in the data
// directory. On the first start it makes a random key (mode 0600). It returns the files
// that it made, for the log.
func FillKeys(cfg *Config) (made []string, err error) {
	for _, k := range []struct {
		file     string
		value    *string
		encoding *base64.Encoding
	}{
		{"api-key", &cfg.APIKey, base64.RawURLEncoding},
		{"admin-key", &cfg.AdminKey, base64.RawURLEncoding},
		{"encryption-key", &cfg.EncryptionKey, base64.StdEncoding},
	} {
		if *k.value != "" {
			continue
		}
		path := filepath.Join(cfg.DataDir, k.file)
		fresh := false
		if *k.value, fresh, err = ReadOrMakeKey(path, k.encoding); err != nil {
			return nil, err
		}
		if fresh {
			made = append(made, path)
		}
	}
	return made, nil
}

// newInstallation reports whether nothing was ever stored with the settings. It can't know that of
// an external database.
func (c *Config) newInstallation() bool {
	_, err := os.Stat(filepath.Join(c.DataDir, "postgres"))
	return c.DatabaseURL == "" && errors.Is(err, fs.ErrNotExist)
}

// CheckGuessable refuses keys that are easy to guess in a new installation. One that has such a key
// already goes on, because a new key would shut out its workers; the log warns.
func (c *Config) CheckGuessable(log zerolog.Logger) (err error) {
	raw, _ := base64.StdEncoding.DecodeString(c.EncryptionKey) // it was read before
	for _, k := range [][2]string{{"api-key", c.APIKey}, {"admin-key", c.AdminKey}, {"encryption-key", string(raw)}} {
		why := edge.Guessable(k[1])
		switch {
		case why == "":
		case c.newInstallation():
			err = errors.Join(err, fmt.Errorf("%s: this key is easy to guess: %s (leave it out, and takt makes one; or: head -c 32 /dev/urandom | base64 | tr +/ -_ | tr -d =)", k[0], why))
		default:
			log.Warn().Str("key", k[0]).Str("why", why).Msg("a key is easy to guess; replace it, see docs/security.md")
		}
	}
	return err
}

// oldKeys returns the keys that are used only to decrypt.
func (c *Config) oldKeys() (keys []seal.Key, err error) {
	for text := range strings.SplitSeq(c.OldEncryptionKeys, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		key, err := seal.ParseKey(text)
		if err != nil {
			return nil, fmt.Errorf("each %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Ring returns the key ring that the settings describe.
func (c *Config) Ring() (*seal.Ring, error) {
	current, err := seal.ParseKey(c.EncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	old, err := c.oldKeys()
	if err != nil {
		return nil, fmt.Errorf("old encryption keys: %w", err)
	}
	return seal.NewRing(current, old...), nil
}

// ReadOrMakeKey returns the content of a file. If the file does not exist, it first
// writes 32 random bytes to it, encoded as text.
func ReadOrMakeKey(path string, encoding *base64.Encoding) (value string, made bool, err error) {
	value, err = cli.ReadSecret("reading a key", path)
	if !errors.Is(err, fs.ErrNotExist) {
		return value, false, err
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails: crypto/rand ends the process instead
	value = encoding.EncodeToString(random)
	if err := cli.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		return "", false, fmt.Errorf("keeping a new key: %w", err)
	}
	return value, true, nil
}
