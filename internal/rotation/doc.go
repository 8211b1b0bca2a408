// Package rotation changes the key of the speakers' membership so that no two
// speakers are deaf to each other meanwhile, whoever starts, stops or edits the
// Secret in between. It is pure: the time and all that was read are arguments.
//
// The entry key of the Secret is what its owner wants. The entry in-use is what
// speakers send with. The controller writes it, so that nobody sends with a new key
// only because he looked first. Every entry that is a key is accepted.
//
//   - The controller makes the wanted key the one in use when the Secret stood unchanged
//     for two minutes: every speaker, which looks once a minute, accepts it then. The
//     former key stays an entry until the Secret stood unchanged for four minutes:
//     every speaker sends with the new one then. What is in use is put back at once
//     when somebody takes it out.
//   - A speaker sends with another key when the Secret stood unchanged for two minutes, and
//     accepts what was an entry before until it stood unchanged for four. So those
//     who run need no controller, and any entry may go.
//   - A speaker that starts knows nothing but the Secret. It takes the key in use at its
//     word. Where none is named, it waits until the Secret stood unchanged for four minutes.
//
// No time is kept in the Secret: a controller that starts in the middle counts
// from there, and to wait for longer does no harm. All of this holds for speakers that
// reach the API server; one that does not for a minute and a half misses what changed.
// It does not hold for an owner who writes another key as in-use himself.
package rotation
