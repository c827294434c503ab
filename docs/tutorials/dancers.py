"""Tutorial 9: two dancers, one certificate about both of them, and a team that it does not cover."""

# --8<-- [start:team]
import psyco

team = psyco.make("particle-dance", agents=2)
for space in team.agent_spaces:
    print(space.name, "observes", space.size, "numbers")
# --8<-- [end:team]

# --8<-- [start:learn]
bounded = '"bounded": P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98'
near = '"near": for each agent: P>=0.9 [ F ("end" & agent.distance <= 0.8) ] & C>=0.98'
run = psyco.synthesize(team, f"{bounded}; {near}", seed=0)
print(run.certificate)
# --8<-- [end:learn]

# --8<-- [start:play]
episode = psyco.record(run.policy, domain=team, seed=3)
for agent in team.agents:
    print(agent, "has a return of", round(float(episode[f"{agent}.return"][-1]), 1))
print(psyco.check_path("F each(agent.distance <= 0.3)", episode))
# --8<-- [end:play]

# --8<-- [start:alone]
run.policy.save("dancers.safetensors")
first = psyco.load_policy("dancers.safetensors").agent("agent_0")
alone, together = first(episode["agent_0.obs"][0]), episode["agent_0.action"][1]
print("alone as in the team:", abs(alone - together).max() < 1e-5)
# --8<-- [end:alone]


# --8<-- [start:twins]
def twins(observations):
    """Let both agents act by the policy of agent_0."""
    return {agent: first(observation) for agent, observation in observations.items()}


twice = psyco.verify(twins, team, f"{bounded}; {near}")
for finding in twice.findings:
    print(finding.name, finding.verdict.name, "with twins:", finding.observed)
# --8<-- [end:twins]

# --8<-- [start:picture]
print(psyco.render(run.policy, "dancers", domain=team, seed=3, film_format="gif"))
# --8<-- [end:picture]
