// Package keyed rotates the encryption key that all speakers share. Any two speakers accept each other's messages at
// every moment, whichever speakers and controllers start or stop, and whoever edits the Secret meanwhile.
//
// The content of the Secret and the time go in. A Rotator returns what the controller should write to the Secret; a
// Keyring returns the keys that one speaker accepts and the key that it sends with. The package is pure: it must not
// read the clock or the API server.
//
//	// In the controller, every few seconds:
//	want, reason := rotator.Decide(secret, speakersRun, time.Now()) // write want unless it is nil
//	// In a speaker, once per ReadInterval:
//	keys := keyring.Update(secret, time.Now()) // keys[0] encrypts
//
// # Entries
//
// The entry key holds the key that the owner of the cluster wants. The entry in-use holds the key that speakers send
// with. Only the controller writes in-use: otherwise the first speaker to read a new key would send with it before
// others accept it. Speakers accept the keys of all entries.
//
// # Rotation
//
//   - The controller takes one step whenever the Secret has been unchanged for five minutes; speakers read it once a
//     minute. The first step puts the wanted key into in-use and moves the old one to former. The second step deletes
//     former. If in-use is removed, the controller restores it at once.
//   - A running speaker needs no controller. It sends with the key in use. If there is none, it sends with the wanted
//     key once the Secret has been unchanged for a minute and a half. It accepts removed keys until the Secret has been
//     unchanged for five minutes, so any entry may be deleted.
//   - A starting speaker has nothing but the Secret. It waits until the Secret has a key in use.
//
// The Secret holds no time. A controller that starts during a rotation counts from its own start; the longer wait is
// harmless.
//
// # Limits
//
// A speaker that cannot reach the API server for a minute and a half misses changes. An owner who writes another key
// to in-use bypasses the rotation.
package keyed
