// Package keyed rotates the encryption key that all speakers share. Any two running speakers accept each other's
// messages at every moment, whichever speakers and controllers start, stop or lose the API server, and whatever an
// owner does to the Secret meanwhile.
//
// The content of the Secret goes in. A Rotator returns what the controller should write to the Secret; a Keyring
// returns the keys that one speaker accepts and the key that it sends with. The package is pure: it must not read the
// API server, and it knows no time.
//
//	// In the controller, every few seconds:
//	want, reason := rotator.Decide(secret, allRead) // write want unless it is nil
//	// In a speaker, for each version of the Secret that it reads:
//	keys := keyring.Update(secret) // keys[0] encrypts
//
// # Entries
//
// The owner of the cluster writes the entry key, the key that should be in use. Only the controller writes in-use, the
// key that speakers send with, and former, a key that some may still send with. The rotation is complete when these two
// are the same. Speakers accept the keys of all entries.
//
// # Steps
//
// Each step changes one entry, and only once every speaker has read the Secret as it is:
//
//	in-use   former  step                    because every speaker
//	missing  none    former becomes key      accepts that key
//	missing  F       in-use becomes former   sends with it
//	U        not U   former becomes U        sends with it: no other key is needed
//	U        U       in-use becomes key      accepts that key
//
// Every speaker reports in its SpeakerState the resource version of the Secret that it has read. A report counts only
// for the present version, and a step is written only over that version. The report of a former process therefore holds
// for its successor too, which reads later, even if a key was removed and returned in between.
//
//   - A speaker accepts a removed key until it reads that in-use and former are the same. Any entry may therefore be
//     deleted. It sends with in-use, or with former if that is missing, or else goes on with its last key.
//   - A starting speaker has nothing but the Secret, and waits until there is a key in use. It makes sure that its
//     SpeakerState exists before it reads the Secret. Without a SpeakerState there is thus no speaker that could have
//     missed the present version.
//   - A speaker that is cut off from the API server, or that is too old to report, delays the next step. So does the
//     SpeakerState of a speaker that is gone, until its node has no pod of a speaker or an operator deletes it.
//   - If the entry in-use is removed, the controller restores it with former at once, as it last read them: running
//     speakers send with one of the two.
//
// # Limits
//
// An owner who writes another key to in-use or former bypasses the steps, as does a backup of the Secret that is
// restored with older keys there. If an owner deletes former during a rotation, speakers that start then do not
// understand speakers that still send with it.
package keyed
