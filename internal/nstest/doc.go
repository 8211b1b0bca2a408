// Package nstest gives tests a network of their own: namespaces, veth pairs, bridges and far hosts whose kernels do
// what a real neighbour's kernel does. A test that needs it wraps its body:
//
//	func TestResolve(t *testing.T) {
//		Run(t, func(t *testing.T) {
//			node, far := Self(t), New(t)
//			Veth(t, node, "eth0", far, "eth0")
//			far.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
//			…
//		})
//	}
//
// Run executes the test binary once more, for this test only, in a network namespace and a PID namespace of its own. So
// every thread of the code under test lives in the node's namespace ("Self"), while far hosts are further namespaces,
// entered with NS.Do or NS.Command. If the user is not root, a user namespace makes the test root within. Where neither
// is allowed the test is skipped.
//
// Nothing can leak: namespaces have no name, only file descriptors of the child, and the child is PID 1 of its PID
// namespace, so that the kernel ends with it everything it started, whatever way it ends. /proc still shows the PIDs of
// the outside: use /proc/self and /proc/thread-self, never /proc/PID.
//
// FRR and BIRD are real routers in such a namespace. Where a router is not installed, the test is skipped.
// A wall clock cannot be set in a namespace, so SetClock sets it in a time.Time.
//
// The package is for tests only; nothing that is shipped may import it.
package nstest
