// Package openapitest checks takt's replies against its OpenAPI document, in tests.
//
// # State
//
// A [Checker] holds the document, made stricter, and its compiled schemas.
//
// # Failure
//
// A status, content type or member that the document does not describe is an error.
// [Checker.Transport] fails the test with it.
//
// # Concurrency
//
// A Checker may be used by any goroutine.
package openapitest
