package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"
)

// ownUmask lets takt's files have the modes that takt gives them, whatever it
// was started with: 0700 and 0600.
func ownUmask() { syscall.Umask(0o077) }

// openDataDir makes the data directory, or looks whether others could change
// what is in it: whoever can, decides over keys and builds.
func openDataDir(dir string, log zerolog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return fmt.Errorf("data directory %s: everybody may write to it (%s), and so replace takt's keys: chmod 700", dir, mode)
	}
	if mode&0o020 != 0 {
		log.Warn().Str("dir", dir).Str("mode", mode.String()).Msg("the data directory's group may write to it, and so replace takt's keys: chmod 700")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		log.Warn().Str("dir", dir).Uint32("owner", st.Uid).Int("user", os.Geteuid()).
			Msg("the data directory belongs to another user, who can read and replace takt's keys")
	}
	for _, name := range []string{"api-key", "admin-key", "encryption-key", "postgres.password"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().Perm()&0o077 != 0 {
			log.Warn().Str("file", filepath.Join(dir, name)).Str("mode", info.Mode().Perm().String()).Msg("this key can be read by others: chmod 600")
		}
	}
	return nil
}
