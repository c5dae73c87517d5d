package storage

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/seal"
	"takt/store/tracing"
)

// Upload is a received file that is complete and durable but has no name yet. Stage
// prepares it for its row, and Commit gives it its name. Discard removes it until then.
type Upload struct {
	// Size is in bytes. It and SHA256 are those of the plain content.
	Size   int64
	SHA256 [sha256.Size]byte
	// Moved is called as bytes are sent to S3. It may be nil.
	Moved func(now time.Time)

	local     *Local
	to        *Files        // nil for the local disk only
	temporary string        // its path, which may be its name already; "" once it has its name or is removed
	took      time.Duration // to make it durable
	sole      bool          // no other upload gets its name, because the build is new
	staged    store.File    // set by Stage; without a name before and after Abort
	renamed   bool          // it has its local name
	fresh     bool          // and perhaps a new directory
	committed bool
}

func temporaryName() string { return path.Join(temporaryDir, rand.Text()+".part") }

// Create reads all of content, which may have up to limit bytes (inclusive), and makes
// it durable. Unless sealFor is "", the content is sealed, and opens only as the file
// of that name. An error leaves no files.
func (l *Local) Create(ctx context.Context, limit int64, sealFor string, content io.Reader) (*Upload, error) {
	return l.create(ctx, temporaryName(), limit, sealFor, content)
}

// create is Create for a file that is called temporary until it is committed.
func (l *Local) create(ctx context.Context, temporary string, limit int64, sealFor string, content io.Reader) (*Upload, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("creating upload: %w", context.Cause(ctx))
	}
	u := &Upload{local: l, temporary: temporary}
	f, err := l.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, failure("creating upload", err)
	}
	in := &tempWriter{file: f, out: f, limit: limit, hash: sha256.New()}
	err = l.take(in, sealFor, content)
	if closing := f.Close(); err == nil && closing != nil {
		err = failure("closing upload", closing)
	}
	if err != nil {
		u.Discard()
		return nil, err
	}
	u.Size, u.took = in.size, in.took
	in.hash.Sum(u.SHA256[:0])
	return u, nil
}

// take reads all of content. It buffers small pieces, as a multipart part delivers
// them, so that hash and disk get large ones.
func (l *Local) take(in *tempWriter, sealFor string, content io.Reader) error {
	var sealer *seal.Writer
	if sealFor != "" {
		var err error
		if sealer, err = l.keys.NewWriter(in.file, seal.Certificates, sealFor); err != nil {
			return failure("sealing upload", err)
		}
		in.out = sealer
	}
	buffer := l.buffers.Get().(*bufio.Writer) // the pool holds nothing else
	defer l.buffers.Put(buffer)
	defer buffer.Reset(nil)
	buffer.Reset(in)
	if _, err := buffer.ReadFrom(content); err != nil {
		return fmt.Errorf("receiving upload: %w", err)
	}
	if err := buffer.Flush(); err != nil {
		return err
	}
	if sealer != nil {
		if err := sealer.Close(); err != nil {
			return failure("sealing upload", err)
		}
	}
	begun := time.Now()
	if err := in.file.Sync(); err != nil {
		return failure("syncing upload", err)
	}
	in.took = time.Since(begun)
	return nil
}

// tempWriter is the writer of a temporary file.
type tempWriter struct {
	file    *os.File
	out     io.Writer // file, or a sealer that writes to it
	limit   int64
	hash    hash.Hash
	size    int64
	flushed int64         // bytes whose write-back to disk has started
	took    time.Duration // of the last sync
}

// Write adds p. It returns a TooLarge error, and writes nothing, if p exceeds the
// limit. A large p is hashed and written in parallel, because both take about the same
// time: on two cores that makes an upload a third faster.
func (in *tempWriter) Write(p []byte) (n int, err error) {
	if in.size+int64(len(p)) > in.limit {
		return 0, store.NewError(store.TooLarge, fmt.Sprintf("File is larger than %d bytes", in.limit))
	}
	if len(p) < parallelFrom {
		in.hash.Write(p)
		n, err = in.out.Write(p)
	} else {
		var hashing sync.WaitGroup
		hashing.Go(func() { in.hash.Write(p) })
		n, err = in.out.Write(p)
		hashing.Wait()
	}
	in.size += int64(n)
	if err != nil {
		return n, failure("writing upload", err)
	}
	in.flushBehind()
	return n, nil
}

// Stage prepares the upload to become the file called name, and returns the description
// for its row. With S3 it stores the file there, which may take long. Commit or Abort
// follows. Errors: Unavailable.
func (u *Upload) Stage(ctx context.Context, name string) (store.File, error) {
	if u.temporary == "" {
		return store.File{}, fmt.Errorf("staging upload: %w", fs.ErrClosed)
	}
	if err := checkName(name); err != nil {
		return store.File{}, fmt.Errorf("staging upload: %w", err)
	}
	begun := time.Now()
	if u.to == nil || u.to.mode != ModeS3 {
		if err := u.local.makeDir(name); err != nil {
			return store.File{}, err
		}
	}
	sending, span := tracing.Start(ctx, trace.SpanKindInternal, "storage send")
	file, err := u.send(sending, name)
	tracing.End(span, err)
	if err != nil {
		return file, fmt.Errorf("storing %s: %w", name, err)
	}
	u.took += time.Since(begun)
	u.staged = file
	return file, nil
}

// Rename gives a staged upload its local name, and replaces an earlier file of that name, but
// not durably. Without it, Commit does so. It may be called again.
func (u *Upload) Rename() error {
	switch name := u.staged.Name; {
	case u.committed, u.renamed, u.staged.Location == store.InS3: // there the name is the object's key and does not change
		return nil
	case u.temporary == "" || name == "":
		return fmt.Errorf("committing upload: %w", fs.ErrClosed)
	default:
		return u.rename(name)
	}
}

// Commit gives a staged upload its name, durably, and replaces an earlier file of that
// name. Call it before the row is visible. After a success it may be called again.
func (u *Upload) Commit(ctx context.Context) error {
	if u.committed {
		return nil
	}
	begun := time.Now()
	_, span := tracing.Start(ctx, trace.SpanKindInternal, "storage commit")
	err := u.Rename()
	if err == nil {
		err = u.syncName()
	}
	tracing.End(span, err)
	if err != nil {
		return err
	}
	if u.staged.Location == store.InS3 {
		u.Discard()
	}
	u.committed = true
	u.took += time.Since(begun)
	if u.to != nil {
		u.to.observe(ctx, "write", u.staged.Name, u.Size, u.took)
	}
	return nil
}

// Abort removes a staged upload that no row names, also after Commit. If it already has
// its local name, and another upload may have that name by now, the sweep removes it.
// Abort may be called more than once.
func (u *Upload) Abort(ctx context.Context) {
	if u.sole && u.temporary == "" && u.staged.Location != store.InS3 {
		u.temporary = u.staged.Name
	}
	u.Discard()
	if u.staged.Object != "" {
		u.to.s3.takeBack(ctx, u.staged.Object)
	}
	u.staged, u.renamed, u.committed = store.File{}, false, false
}

// send stores the upload in S3, if files go there, and describes the file.
func (u *Upload) send(ctx context.Context, name string) (store.File, error) {
	file := store.File{Name: name, Size: u.Size, SHA256: u.SHA256, Location: store.OnDisk}
	if u.to == nil || u.to.mode == ModeLocal {
		return file, nil
	}
	if u.to.mode == ModeDual {
		return u.sendSecond(ctx, file)
	}
	var err error
	file.Location = store.InS3
	file.Object, err = u.put(ctx, name)
	return file, err
}

// put stores the upload under a new key. If that fails, it removes the incomplete object.
func (u *Upload) put(ctx context.Context, name string) (key string, err error) {
	f, err := u.local.Open(u.temporary)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return u.to.s3.putNew(ctx, name, f, u.Moved)
}

// errCopyTimeout says that the second copy took too long.
var errCopyTimeout = errors.New("the second copy takes too long")

// sendSecond stores the second copy if S3 takes it soon. Else it marks the copy as
// pending.
func (u *Upload) sendSecond(ctx context.Context, file store.File) (store.File, error) {
	file.CopyPending = true
	if u.to.s3.resting() {
		return file, nil
	}
	limit, cancel := context.WithTimeoutCause(ctx, u.to.patience, errCopyTimeout)
	defer cancel()
	key, err := u.put(limit, file.Name)
	switch {
	case err == nil:
		file.Object, file.Location, file.CopyPending = key, store.InBoth, false
	case ctx.Err() != nil:
		return file, err
	case errors.Is(err, errCopyTimeout):
		u.to.s3.state.Store(&S3State{At: time.Now(), Err: err})
	}
	return file, nil
}

func checkName(name string) error {
	if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.Contains(name, `\`) {
		return fmt.Errorf("invalid name %q", name)
	}
	return nil
}

// rename gives the upload its local name.
func (u *Upload) rename(name string) error {
	root := u.local.root
	u.fresh = u.temporary == name
	var err error
	if !u.fresh {
		err = root.Rename(u.temporary, name)
	}
	if errors.Is(err, fs.ErrNotExist) { // the janitor removed an empty directory
		u.fresh = true
		if err = root.MkdirAll(path.Dir(name), 0o700); err == nil {
			err = root.Rename(u.temporary, name)
		}
	}
	if err != nil {
		return failure("naming upload", err)
	}
	u.temporary, u.renamed = "", true
	return nil
}

// syncName makes the local name durable.
func (u *Upload) syncName() error {
	if !u.renamed {
		return nil
	}
	dir := path.Dir(u.staged.Name)
	err := u.local.syncDir(dir)
	if err == nil && u.fresh { // the entry of the new directory must be durable, too
		err = u.local.syncDir(path.Dir(dir))
	}
	if err != nil {
		return failure("naming upload", err)
	}
	return nil
}

// makeDir makes the directory of a file, durably, so that its name costs little time later.
func (l *Local) makeDir(name string) error {
	dir := path.Dir(name)
	err := l.root.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		err = l.root.MkdirAll(dir, 0o700)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err == nil:
		err = l.syncDir(path.Dir(dir))
	}
	if err != nil {
		return failure("making a directory", err)
	}
	return nil
}

// Discard removes the local file of an upload that has no name yet. It may be called at
// any time, more than once, and on nil.
func (u *Upload) Discard() {
	if u != nil && u.temporary != "" {
		_ = u.local.root.Remove(u.temporary) // if this fails, the janitor removes it
		if dir := path.Dir(u.temporary); dir != temporaryDir {
			_ = u.local.root.Remove(dir) // fails while it holds another file
		}
		u.temporary = ""
	}
}

// Create is [Local.Create] for an upload that is stored where the mode says.
func (f *Files) Create(ctx context.Context, limit int64, sealFor string, content io.Reader) (*Upload, error) {
	ctx, span := tracing.Start(ctx, trace.SpanKindInternal, "storage receive")
	u, err := f.Local.Create(ctx, limit, sealFor, content)
	tracing.End(span, err)
	if err == nil {
		u.to = f
	}
	return u, err
}

// CreateNew is Create for a file of a new build: nothing else has its name or its
// directory, so on the local disk it is written under its name. That is one change of
// directories less, which is most of what a small upload costs.
func (f *Files) CreateNew(ctx context.Context, name string, limit int64, seal bool, content io.Reader) (*Upload, error) {
	sealFor := ""
	if seal {
		sealFor = name
	}
	if f.mode == ModeS3 {
		return f.Create(ctx, limit, sealFor, content)
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("creating upload: %w", err)
	}
	if err := f.root.Mkdir(path.Dir(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, failure("creating upload", err)
	}
	ctx, span := tracing.Start(ctx, trace.SpanKindInternal, "storage receive")
	u, err := f.create(ctx, name, limit, sealFor, content)
	tracing.End(span, err)
	if err == nil {
		u.to, u.sole = f, true
	}
	return u, err
}

// Duplicate returns an upload, for a new build, with the content of a file that a row names. A plain file
// on the local disk is linked, not read, if the file system supports that. A sealed
// file is always sealed again, under the new name sealFor, because it opens only as the
// file of its own name. Errors: NotFound, Unavailable, ErrDamaged.
func (f *Files) Duplicate(ctx context.Context, file store.File, sealFor string) (*Upload, error) {
	if sealFor == "" {
		if u := f.link(file); u != nil {
			return u, nil
		}
	}
	return f.copyOf(ctx, file, sealFor)
}

// copyOf is Duplicate by copying the bytes.
func (f *Files) copyOf(ctx context.Context, file store.File, sealFor string) (*Upload, error) {
	var from io.ReadCloser
	var err error
	if sealFor == "" {
		from, err = f.Open(ctx, file)
	} else {
		from, err = f.OpenSealed(ctx, file)
	}
	if err != nil {
		return nil, err
	}
	defer from.Close()
	u, err := f.Create(ctx, file.Size, sealFor, from)
	if err == nil && u.SHA256 != file.SHA256 {
		u.Discard()
		err = ErrDamaged
	}
	if err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", file.Name, err)
	}
	u.sole = true
	return u, nil
}

// link is Duplicate by a hard link; it returns nil if that is not possible.
func (f *Files) link(file store.File) *Upload {
	found, err := f.Stat(file.Name)
	if err != nil || found.Size != file.Size || !file.Location.Local() {
		return nil
	}
	u := &Upload{Size: file.Size, SHA256: file.SHA256, local: f.Local, to: f, sole: true, temporary: temporaryName()}
	if err = f.root.Link(file.Name, u.temporary); err != nil {
		return nil
	}
	// Both names share one modification time. It is set to now, because otherwise the
	// sweep would remove this name as a leftover.
	now := time.Now()
	if err = f.root.Chtimes(u.temporary, now, now); err != nil {
		u.Discard()
		return nil
	}
	return u
}
