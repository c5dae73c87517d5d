package runner

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"takt/cmd/internal/cli"
	"takt/store"
)

// state is the worker's directory, locked.
type state struct {
	dir    string
	idFile string
	lock   *os.File
	// left are the directories of builds with which an earlier worker was killed.
	left []string
	// id is the worker's, instance that of its process. Set by identify.
	id, instance string
	// registration is the number of the last registration.
	registration int64
}

// openState locks the directory.
func openState(dir, idFile string) (*state, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if idFile == "" {
		idFile = filepath.Join(dir, "worker-id")
	}
	s := &state{dir: dir, idFile: idFile}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if s.lock, err = lockFile(filepath.Join(dir, "lock"), "state directory "+dir); err != nil {
		return nil, err
	}
	left, _ := os.ReadDir(s.builds()) // none, should it fail
	for _, dir := range left {
		s.left = append(s.left, dir.Name())
	}
	raw, _ := os.ReadFile(s.registrationFile()) // none, should it fail
	if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil {
		s.registration = n
	}
	return s, nil
}

// clear removes what a killed worker left of its builds.
func (s *state) clear() error {
	if err := removeAll(s.builds()); err != nil {
		return fmt.Errorf("removing what an earlier worker left: %w", err)
	}
	return os.MkdirAll(s.builds(), 0o700)
}

// A lock that is held is tried again so often, after each pause, before it counts as another
// worker's.
const (
	lockTries = 50
	lockPause = 20 * time.Millisecond
)

// lockFile creates a file and locks it for this process. what is the name of the locked
// resource in errors.
func lockFile(path, what string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for range lockTries { // a process that a killed worker was starting holds a copy until it runs
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		<-time.After(lockPause)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another worker uses it", what)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// unlock releases a lock explicitly, because a process that is being started may hold a copy of
// the descriptor for a moment.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close()
}

func (s *state) builds() string { return filepath.Join(s.dir, "builds") }

func (s *state) close() { unlock(s.lock) }

// readID returns the worker's id, a new one if there is none. The worker chooses
// its id itself: a registration whose answer is lost then leaves no second
// worker behind when it is repeated.
func (s *state) readID() (string, error) {
	raw, err := os.ReadFile(s.idFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s.newID()
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(raw))
	if !store.ValidID(id) {
		return "", fmt.Errorf("%s: holds no worker id; remove it to get a new one", s.idFile)
	}
	return id, nil
}

// newID makes an id and saves it.
func (s *state) newID() (string, error) {
	id := store.NewID()
	return id, s.keepID(id)
}

func (s *state) keepID(id string) error { return replace(s.idFile, id+"\n") }

func (s *state) registrationFile() string { return filepath.Join(s.dir, "registration") }

// nextRegistration returns the number of the next registration. It is higher than those of all
// earlier ones, also of the processes before, because this one may have their id. Should the
// file be lost, the time of day is higher. An error means that the number was not saved.
func (s *state) nextRegistration(now time.Time) (int64, error) {
	s.registration = max(s.registration+1, now.UnixMilli())
	return s.registration, replace(s.registrationFile(), strconv.FormatInt(s.registration, 10)+"\n")
}

func (s *state) sessionFile() string { return filepath.Join(s.dir, "session") }

// token returns the saved token, "" if there is none for the worker's current
// registration. A worker that lost builds has to register in any case, to report that.
func (s *state) token(registration []byte) string {
	raw, _ := os.ReadFile(s.sessionFile()) // none, should it fail
	token, about, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
	if len(s.left) > 0 || about != digest(registration) {
		return ""
	}
	return token
}

// keepToken saves the token of a registration. It is as secret as the API key.
func (s *state) keepToken(token string, registration []byte) error {
	return replace(s.sessionFile(), token+"\n"+digest(registration)+"\n")
}

func (s *state) dropToken() error {
	if err := os.Remove(s.sessionFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// replace writes a file that only its owner reads, in one durable step: a crash leaves
// the old content or the new.
func replace(path, content string) error { return cli.WriteFile(path, []byte(content), 0o600) }

// workspace is a build's directory and its content.
type workspace struct {
	root string
	zip  string
	Workspace
}

const outputName = "result"

// workspace makes a clean directory for a build.
func (s *state) workspace(buildID, platform string, attempt int) (workspace, error) {
	root := filepath.Join(s.builds(), fmt.Sprintf("%s-%d", buildID, attempt))
	w := workspace{
		root: root,
		zip:  filepath.Join(root, "archive.zip"),
		Workspace: Workspace{
			BuildID: buildID, Platform: platform, Attempt: attempt,
			Source: filepath.Join(root, "source"),
			Output: filepath.Join(root, "out", outputName),
			Temp:   filepath.Join(root, "tmp"),

			envFile: filepath.Join(root, "env"),
		},
	}
	if err := removeAll(root); err != nil {
		return w, err
	}
	for _, dir := range []string{root, w.Source, filepath.Dir(w.Output), w.Temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return w, err
		}
	}
	return w, nil
}

// open gives the command's part of a workspace to the user that it runs as.
func (s *state) open(o *Owner, w *workspace) error {
	if o == nil {
		return nil
	}
	if err := o.open(s.dir, s.builds(), w.root); err != nil {
		return err
	}
	dirs := []string{w.Source, filepath.Dir(w.Output), w.Temp}
	if w.Certs != "" {
		dirs = append(dirs, w.Certs)
	}
	if w.Params != "" {
		dirs = append(dirs, w.Params)
	}
	return o.give(dirs...)
}

func (w workspace) certs() string   { return filepath.Join(w.root, "certs") }
func (w workspace) secrets() string { return filepath.Join(w.root, "secrets") }

// removeSecrets removes certificates and secrets.
func (w workspace) removeSecrets() error {
	return errors.Join(removeAll(w.certs()), removeAll(w.secrets()), removeAll(w.envFile))
}

// removeAll removes a tree, also one whose directories were made read-only, as module
// caches are. Beside a process that exchanges directories for links it changes and
// removes nothing outside of the tree, provided that root's parent is closed to it.
func removeAll(root string) error {
	if os.RemoveAll(root) == nil {
		return nil
	}
	_ = os.Chmod(root, 0o700) //nolint:gosec // a directory
	if inside, err := os.OpenRoot(root); err == nil {
		_ = fs.WalkDir(inside.FS(), ".", func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = inside.Chmod(path, 0o700)
			}
			return nil // the second removal reports what is left
		})
		_ = inside.Close()
	}
	return os.RemoveAll(root)
}
