// Package certs extracts the signing files from the zip archive that a submitter sent: a
// PKCS #12 file, its password, and provisioning profiles.
//
// # State
//
// None.
//
// # Failure
//
// An archive is refused as a whole if it is damaged, has no PKCS #12 file, or looks
// like an attack: names that lead outside, symbolic links, more bytes than allowed
// when unpacked. A size in the archive's directory is only a reason to refuse. The
// bytes that were really read decide.
//
// # Concurrency
//
// [Unpack] keeps nothing and may be called by any goroutine.
package certs
