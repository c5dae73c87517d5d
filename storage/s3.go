package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"takt/store"
	"takt/store/tracing"
)

const (
	// partSize is the size of one part of a larger file, in bytes.
	partSize = 16 << 20
	// atOnce is how many files are sent in parallel.
	atOnce = 4
)

// S3Config says which bucket to use, and how.
type S3Config struct {
	// Endpoint is the server's URL, https or http. Required.
	Endpoint string
	// Bucket must exist. Required.
	Bucket string
	// Region defaults to us-east-1.
	Region string
	// Prefix is put before every key, followed by a slash.
	Prefix string
	// PathStyle says where requests name the bucket: "true" in the path, "false" in the
	// host name, "auto" (the default) as the endpoint's vendor requires.
	PathStyle string
	// AccessKey and SecretKey are required. They are never logged.
	AccessKey, SecretKey string

	// StallTimeout is how long a transfer may make no progress, and how long an answer
	// may take. Defaults to 30 seconds.
	StallTimeout time.Duration
	// RestTime is how long optional requests to S3 are skipped after a failure. Defaults
	// to 15 seconds.
	RestTime time.Duration
}

func (c S3Config) withDefaults() S3Config {
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.PathStyle = cmp.Or(c.PathStyle, "auto")
	c.StallTimeout = cmp.Or(c.StallTimeout, 30*time.Second)
	c.RestTime = cmp.Or(c.RestTime, 15*time.Second)
	if c.Prefix = strings.TrimSuffix(c.Prefix, "/"); c.Prefix != "" {
		c.Prefix += "/"
	}
	return c
}

// Validate returns an error that names every fault of c.
func (c S3Config) Validate() error {
	var faults []error
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		faults = append(faults, errors.New("s3-endpoint: must be the URL of a server, such as https://s3.example.com"))
	}
	if c.Bucket == "" || strings.ContainsAny(c.Bucket, "/ ") {
		faults = append(faults, errors.New("s3-bucket: must be the name of a bucket"))
	}
	if p := strings.TrimSuffix(c.Prefix, "/"); p != "" && (!filepath.IsLocal(p) || path.Clean(p) != p) {
		faults = append(faults, errors.New("s3-prefix: must be a plain path without a slash at its start"))
	}
	switch c.PathStyle {
	case "", "auto", "true", "false":
	default:
		faults = append(faults, errors.New("s3-path-style: must be auto, true or false"))
	}
	if c.AccessKey == "" {
		faults = append(faults, errors.New("s3-access-key: must be given"))
	}
	if c.SecretKey == "" {
		faults = append(faults, errors.New("s3-secret-key: must be given"))
	}
	return errors.Join(faults...)
}

// S3 stores files in a bucket of any S3-compatible server. It handles only keys and
// bytes.
type S3 struct {
	cfg       S3Config
	client    minio.Core
	transport *http.Transport
	sends     chan struct{} // one for each upload under way
	state     atomic.Pointer[S3State]
}

// S3State is the result of the last request to S3.
type S3State struct {
	// At is the time of that request; zero before the first.
	At time.Time
	// Err is nil if S3 answered.
	Err error
}

// OpenS3 returns the bucket of cfg. It sends no request, because takt must start even
// while the server is down.
func OpenS3(cfg S3Config) (*S3, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	cfg = cfg.withDefaults()
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	transport, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	transport.ResponseHeaderTimeout = cfg.StallTimeout
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""),
		Secure: u.Scheme == "https", Region: cfg.Region, Transport: tracing.Outgoing(transport),
		BucketLookup: map[string]minio.BucketLookupType{
			"auto": minio.BucketLookupAuto, "true": minio.BucketLookupPath, "false": minio.BucketLookupDNS,
		}[cfg.PathStyle],
		MaxRetries: 3,
	})
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	core.SetAppInfo("takt", "1")
	s := &S3{cfg: cfg, client: *core, transport: transport, sends: make(chan struct{}, atOnce)}
	s.state.Store(&S3State{})
	return s, nil
}

// Close releases idle connections.
func (s *S3) Close() { s.transport.CloseIdleConnections() }

// State returns the result of the last request to S3.
func (s *S3) State() S3State { return *s.state.Load() }

// resting reports whether S3 failed within RestTime.
func (s *S3) resting() bool {
	st := s.State()
	return st.Err != nil && time.Since(st.At) < s.cfg.RestTime
}

// Probe checks that the bucket exists.
func (s *S3) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	found, err := s.client.BucketExists(ctx, s.cfg.Bucket)
	if err == nil && !found {
		err = minio.ErrorResponse{Code: minio.NoSuchBucket, Message: "bucket " + s.cfg.Bucket + " does not exist"}
	}
	return s.failure(ctx, "asking for the bucket", err)
}

// Put stores size bytes of r under key. It returns after S3 has confirmed them. moved
// is called as bytes are sent; it may be nil.
func (s *S3) Put(ctx context.Context, key string, r io.ReaderAt, size int64, moved func(now time.Time)) error {
	full, err := s.full(key)
	if err != nil {
		return err
	}
	select {
	case s.sends <- struct{}{}:
	default:
		select {
		case s.sends <- struct{}{}:
			if s.resting() { // as those before found out: don't wait for the same time-out in turn
				<-s.sends
				return s.unavailable(s.State().Err)
			}
		case <-ctx.Done():
			return s.failure(ctx, "waiting to store an object", context.Cause(ctx))
		}
	}
	ctx, w := watch(ctx, s.cfg.StallTimeout, moved)
	defer w.stop()
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.sends }()
		// A ReaderAt is sent directly, so no part is held in memory.
		info, err := s.client.Client.PutObject(ctx, s.cfg.Bucket, full, io.NewSectionReader(r, 0, size), size, minio.PutObjectOptions{
			ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1, Progress: w,
			// An empty body that is signed in pieces still has a body. Some servers leave
			// that body in the connection and then fail on the next request.
			DisableContentSha256: size == 0,
		})
		if err == nil && info.ETag == "" {
			err = errors.New("the answer has no ETag, so it is not that of an S3 server")
		}
		done <- err
	}()
	late := make(chan struct{}) // minio keeps removing parts until S3 answers
	defer context.AfterFunc(ctx, func() { time.AfterFunc(takeBackLate, func() { close(late) }) })()
	select {
	case err = <-done:
	case <-late:
		err = context.Cause(ctx)
	}
	if err = s.failure(ctx, "storing an object", err); store.CodeOf(err) == store.NotFound {
		return s.unavailable(err) // the upload that was begun, or a server that is not S3
	}
	return err
}

// takeBackTimeout bounds the removal of an object that no row will name, and takeBackLate how
// much longer than its request S3 may take to clean up. The sweep removes the object if this fails.
const takeBackTimeout, takeBackLate = 5 * time.Second, 250 * time.Millisecond

// putNew stores f, as the file called name, under a new key. If that fails, it removes
// what was begun.
func (s *S3) putNew(ctx context.Context, name string, f *File, moved func(now time.Time)) (key string, err error) {
	key = objectKey(name)
	if err := s.Put(ctx, key, f, f.Size, moved); err != nil {
		s.takeBack(ctx, key)
		return "", err
	}
	return key, nil
}

// takeBack removes an object that no row names. It sends no request to an S3 that
// failed a moment ago, because the sweep will remove the object.
func (s *S3) takeBack(ctx context.Context, key string) {
	if s.resting() {
		return
	}
	longer, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), takeBackTimeout, errStalled)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(takeBackLate, cancel) })()
	_ = s.Remove(longer, key) // the sweep removes it otherwise
}

// Size returns the size of the object under key. Error: NotFound.
func (s *S3) Size(ctx context.Context, key string) (int64, error) {
	full, err := s.full(key)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	info, err := s.client.StatObject(ctx, s.cfg.Bucket, full, minio.StatObjectOptions{})
	return info.Size, s.failure(ctx, "looking at an object", err)
}

// Remove removes the object under key; it is no error if there is none.
func (s *S3) Remove(ctx context.Context, key string) error {
	full, err := s.full(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	err = s.client.RemoveObject(ctx, s.cfg.Bucket, full, minio.RemoveObjectOptions{})
	if err = s.failure(ctx, "removing an object", err); store.CodeOf(err) == store.NotFound {
		return nil
	}
	return err
}

// full returns the key with the prefix. It refuses keys that a file system behind S3
// could read differently.
func (s *S3) full(key string) (string, error) {
	if err := checkName(key); err != nil {
		return "", fmt.Errorf("object key: %w", err)
	}
	return s.cfg.Prefix + key, nil
}

// failure records the result of a request and gives its error a code. It returns nil
// for nil.
func (s *S3) failure(ctx context.Context, doing string, err error) error {
	if err == nil {
		s.state.Store(&S3State{At: time.Now()})
		return nil
	}
	cause := context.Cause(ctx)
	if cause != nil && !errors.Is(cause, errStalled) {
		return fmt.Errorf("%s: %w", doing, cause) // caused by the caller, not by S3
	}
	response := minio.ToErrorResponse(err)
	if response.Code == minio.NoSuchKey || response.StatusCode == http.StatusNotFound && response.Code != minio.NoSuchBucket {
		s.state.Store(&S3State{At: time.Now()})
		return store.Wrap(store.NotFound, "File not found", fmt.Errorf("%s: %w", doing, err))
	}
	if response.StatusCode == http.StatusPreconditionFailed {
		s.state.Store(&S3State{At: time.Now()})
		return store.Wrap(store.Unavailable, "The file was replaced, try again", fmt.Errorf("%s: %w", doing, errReplaced))
	}
	if cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return s.unavailable(fmt.Errorf("%s: %w", doing, err))
}

// unavailable records an outage.
func (s *S3) unavailable(err error) error {
	s.state.Store(&S3State{At: time.Now(), Err: err})
	e := store.Wrap(store.Unavailable, "The storage of files is not available, try again later", err)
	e.RetryAfter = s.cfg.RestTime
	return e
}
