"""PSyCo(m, φ) = V(m, φ, L(m, φ)): learn a policy, select a candidate, certify it."""
