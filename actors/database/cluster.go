package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
)

// clusterName is the directory of the embedded database in the data directory.
const clusterName = "postgres"

// draftPrefix begins the names of incomplete clusters. A cluster is renamed to clusterName
// when it is complete, so an incomplete one is never taken for a database.
const draftPrefix = clusterName + ".init-"

// cluster is an existing database directory, which is kept open. Its files are accessed
// through the open directory, because the server's account may have no access to the parent
// directories.
type cluster struct {
	dir      string // the path, for messages
	root     *os.Root
	home     *os.File    // the same directory; the server inherits it
	info     os.FileInfo // its device and inode
	owner    owner
	bins     Binaries
	password string
	log      zerolog.Logger
	run      spawn // starts goroutines of the actor that opened it
}

// openCluster opens the database directory in the data directory, and creates it if there is
// none. The caller closes it.
func openCluster(ctx context.Context, cfg PostgresConfig, log zerolog.Logger, run spawn) (*cluster, error) {
	found, err := findBinaries(ctx, cfg.SearchPath, cfg.Globs)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	data, err := os.OpenRoot(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("opening the data directory: %w", err)
	}
	defer data.Close()

	// A relative path in a message or a socket address would be ambiguous.
	abs, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("naming the data directory: %w", err)
	}
	cl := &cluster{dir: filepath.Join(abs, clusterName), log: log, run: run}
	err = cl.prepare(ctx, data, found)
	if err == nil && !cfg.EvenMoved {
		err = refuseMoved(cfg.DataDir)
	}
	if err != nil {
		cl.close()
		return nil, err
	}
	return cl, nil
}

// prepare fills in a cluster's password, account, programs and directory.
func (cl *cluster) prepare(ctx context.Context, data *os.Root, found []Binaries) error {
	major, existing, err := examine(data, cl.dir)
	if err != nil {
		return err
	}
	if cl.bins, err = chooseBinaries(found, major, cl.dir); err != nil {
		return err
	}
	if cl.owner, err = chooseOwner(os.Geteuid(), os.Getegid(), existing, user.Lookup); err != nil {
		return err
	}
	var fresh bool
	if cl.password, fresh, err = loadPassword(data); err != nil {
		return err
	}
	removeDrafts(data, cl.log)
	if major == 0 {
		if err := cl.create(ctx, data); err != nil {
			return fmt.Errorf("making a database in %s: %w", cl.dir, err)
		}
	}
	if err := cl.open(os.OpenRoot(cl.dir)); err != nil { // may be a link to another disk
		return err
	}
	if major != 0 && fresh {
		return cl.resetPassword(ctx)
	}
	return nil
}

// examine returns the version and the owner of the cluster under the cluster's name.
// major is 0 if there is none. An empty directory counts as none.
func examine(data *os.Root, dir string) (major int, existing *owner, err error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := data.Lstat(clusterName); err == nil {
			return 0, nil, fmt.Errorf("%s points nowhere: is its disk mounted?", dir)
		}
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("looking at the database directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, nil, fmt.Errorf("opening the database directory: %w", err)
	}
	defer root.Close()
	text, err := root.ReadFile("PG_VERSION")
	if errors.Is(err, fs.ErrNotExist) {
		if err := data.Remove(clusterName); err != nil { // removes only an empty directory
			return 0, nil, fmt.Errorf("%s holds no database (no PG_VERSION) and is not free for one: move it away, or restore it: %w", dir, err)
		}
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("reading the database's version: %w", err)
	}
	if major, err = clusterMajor(dir, text); err != nil {
		return 0, nil, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		existing = &owner{uid: stat.Uid, gid: stat.Gid}
	}
	return major, existing, nil
}

// open sets the cluster's directory to an opened one.
func (cl *cluster) open(root *os.Root, err error) error {
	if err != nil {
		return fmt.Errorf("opening the database directory: %w", err)
	}
	cl.root = root
	if cl.home, err = cl.root.Open("."); err != nil {
		return fmt.Errorf("opening the database directory: %w", err)
	}
	if cl.info, err = cl.home.Stat(); err != nil {
		return fmt.Errorf("looking at the database directory: %w", err)
	}
	return nil
}

func (cl *cluster) close() {
	if cl.home != nil {
		_ = cl.home.Close()
		cl.home = nil
	}
	if cl.root != nil {
		_ = cl.root.Close()
		cl.root = nil
	}
}

// create makes a cluster in a draft directory and renames that once it is synced to the disk.
// A kill -9 leaves either a draft or a complete database.
func (cl *cluster) create(ctx context.Context, data *os.Root) error {
	draft := draftPrefix + strings.ToLower(rand.Text())
	if err := data.Mkdir(draft, 0o700); err != nil {
		return err
	}
	if err := cl.fill(ctx, data, draft); err != nil {
		removeDrafts(data, cl.log)
		return err
	}
	if err := data.Rename(draft, clusterName); err != nil {
		return err
	}
	return syncDir(data)
}

// fill runs initdb in the draft. initdb syncs all its files before it ends.
func (cl *cluster) fill(ctx context.Context, data *os.Root, draft string) error {
	if cl.owner.drop {
		if err := data.Chown(draft, int(cl.owner.uid), int(cl.owner.gid)); err != nil {
			return err
		}
	}
	if err := cl.open(data.OpenRoot(draft)); err != nil {
		return err
	}
	defer cl.close()
	secret, err := passwordPipe(cl.password, cl.owner)
	if err != nil {
		return err
	}
	defer secret.Close()
	home, files := inherited(cl.home, filepath.Join(filepath.Dir(cl.dir), draft))
	err = cl.runTool(ctx, "initdb", []string{
		"-D", home, "--username=" + databaseUser, "--pwfile=" + inheritedPath(firstInherited+len(files)),
		"--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions",
	}, nil, append(files, secret))
	if err != nil {
		return err
	}
	if err := includeOurs(cl.root, cl.owner); err != nil {
		return err
	}
	_, err = applySettings(cl.root, cl.owner)
	return err
}

// resetPassword gives the cluster the password of a new password file. It is used when
// the old file was lost. No server may run in the cluster.
func (cl *cluster) resetPassword(ctx context.Context) error {
	if err := cl.clear(ctx); err != nil {
		return err
	}
	home, files := inherited(cl.home, cl.dir)
	// rand.Text needs no quoting.
	sql := fmt.Sprintf("ALTER USER %s PASSWORD '%s'\n", databaseUser, cl.password)
	err := cl.runTool(ctx, "postgres", []string{"--single", "-D", home, "-c", "log_statement=none", "-c", "log_min_error_statement=panic", "postgres"},
		strings.NewReader(sql), files)
	if err != nil {
		return fmt.Errorf("setting a new database password: %w", err)
	}
	cl.log.Warn().Str("file", passwordFileName).Msg("database password lost; created a new one")
	return nil
}

// removeDrafts removes clusters whose creation was interrupted. The initdb of a killed takt is
// killed too. If it still writes files during the removal, the next start removes them.
func removeDrafts(data *os.Root, log zerolog.Logger) {
	names, _ := fs.Glob(data.FS(), draftPrefix+"*") // fails for a bad pattern only
	for _, name := range names {
		log.Warn().Str("directory", name).Msg("removing an incomplete database directory")
		if err := data.RemoveAll(name); err != nil {
			log.Warn().Err(err).Str("directory", name).Msg("could not remove it")
		}
	}
}
